package gateway

import (
	"net"
	"strings"
	"syscall"
	"testing"
)

func TestADialThatFailedNamesNoPort0(t *testing.T) {
	err := withoutPort0(&net.OpError{Op: "dial", Net: "tcp", Source: &net.TCPAddr{IP: net.IPv4(127, 20, 2, 1)}, Addr: &net.TCPAddr{IP: net.IPv4(127, 20, 2, 11), Port: 15008}, Err: syscall.ECONNREFUSED})
	if got := err.Error(); !strings.HasPrefix(got, "dial tcp 127.20.2.1->127.20.2.11:15008: ") || dialReason(err) != attemptRefused {
		t.Errorf("%q, reason %s", got, dialReason(err))
	}
}
