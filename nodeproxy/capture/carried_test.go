//go:build linux

package capture

import (
	"context"
	"net"
	"syscall"
	"testing"
)

// What breaks without our tables is what was led to a node proxy and what comes from a client's address; what else a pod
// has open, or a listener, is nothing that they are kept for.
func TestCarriedIsWhatOurTablesAreNeededFor(t *testing.T) {
	p := newPod(t)
	carried := func() bool {
		t.Helper()
		is, err := Carried(p.ns)
		must(t, err)
		return is
	}
	connect := func(at string, control ...func(string, string, syscall.RawConn) error) (end func()) {
		t.Helper()
		lc := net.ListenConfig{Control: p.ns.Control}
		l, err := lc.Listen(context.Background(), "tcp", at)
		must(t, err)
		d := net.Dialer{Control: func(n, a string, c syscall.RawConn) error {
			for _, f := range append([]func(string, string, syscall.RawConn) error{p.ns.Control}, control...) {
				if err := f(n, a, c); err != nil {
					return err
				}
			}
			return nil
		}}
		c, err := d.Dial("tcp", l.Addr().String())
		must(t, err)
		there, err := l.Accept()
		must(t, err)
		return func() {
			for _, x := range []net.Conn{c, there} {
				x.(*net.TCPConn).SetLinger(0)
				x.Close()
			}
			l.Close()
		}
	}
	if carried() {
		t.Error("in a pod that has nothing open something is carried")
	}
	for _, row := range []struct {
		at      string
		carried bool
	}{
		{podAddress + ":8080", false},
		{"[" + pod6 + "]:8080", false},
		{"127.0.0.1:8080", false},
		{"[::1]:8080", false},
		{"127.0.0.1:15001", true},
		{"[::1]:15001", true},
		{podAddress + ":15006", true},
	} {
		end := connect(row.at)
		if got := carried(); got != row.carried {
			t.Errorf("with a connection to %s carried is %t; want %t", row.at, got, row.carried)
		}
		end()
		if carried() {
			t.Errorf("the connection to %s has ended, and is carried", row.at)
		}
	}
	must(t, SetSource(p.ns, false))
	end := connect(podAddress+":8080", Mark, Source(nobody4, p.ports(t)))
	if !carried() {
		t.Errorf("a connection from %s, which is not the pod's, is not carried", nobody4)
	}
	end()
	if carried() {
		t.Error("a connection from an address that is not the pod's has ended, and is carried")
	}
}
