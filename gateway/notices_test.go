package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
)

func TestWhyNobodyIsHeardHasNoPortOfItsOwn(t *testing.T) {
	dial := func(port int) error {
		return fmt.Errorf("dial: %w", &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port}, Err: errors.New("i/o timeout")})
	}
	if a, b := whyUnheard(dial(40001)), whyUnheard(dial(40002)); a != b || a != "read: i/o timeout" {
		t.Errorf("%q and %q; want the same", a, b)
	}
	for _, err := range []error{fmt.Errorf("read: %w", io.EOF), &net.OpError{Op: "read", Err: syscall.ECONNRESET}} {
		if got := whyUnheard(err); got != whyUnheard(io.EOF) {
			t.Errorf("%v is %q", err, got)
		}
	}
}
