package localfault

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestOnlyWhatThisHostLacksIsLocal(t *testing.T) {
	for err, want := range map[error]bool{
		syscall.EMFILE: true, syscall.ENFILE: true, syscall.ENOBUFS: true, syscall.ENOMEM: true,
		syscall.EADDRNOTAVAIL: true, syscall.EPERM: true, syscall.EACCES: true,
		syscall.ECONNREFUSED: false, syscall.ECONNRESET: false, syscall.ETIMEDOUT: false,
		syscall.EHOSTUNREACH: false, syscall.ENETUNREACH: false, syscall.EPIPE: false,
		os.ErrDeadlineExceeded: false, context.DeadlineExceeded: false, errors.New("tls: internal error"): false,
	} {
		dialled := fmt.Errorf("dial the pod: %w", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", err)})
		if got := Is(dialled); got != want {
			t.Errorf("%v: local %t, want %t", dialled, got, want)
		}
	}
	if Is(nil) {
		t.Error("no error is a local fault")
	}
}

func TestADialWithoutASourceAddressIsLocal(t *testing.T) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}} // TEST-NET-1: not of this host
	_, err := d.Dial("tcp", "127.0.0.1:9")
	if !Is(err) {
		t.Errorf("%v is the peer's; want it local", err)
	}
}
