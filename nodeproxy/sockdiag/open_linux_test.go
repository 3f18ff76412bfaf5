package sockdiag

import (
	"net"
	"net/netip"
	"slices"
	"testing"
)

// Open tells of connections that a process has, by both ends and of both families: neither of listeners nor of what
// nobody has accepted, nor of what has ended.
func TestOpenTellsOfConnectionsThatAProcessHas(t *testing.T) {
	table := open(t)
	for _, network := range []string{"tcp4", "tcp6"} {
		at := "127.0.0.1:0"
		if network == "tcp6" {
			at = "[::1]:0"
		}
		l := listen(t, network, at, false)
		here := l.Addr().(*net.TCPAddr).AddrPort()
		told := func() (local, remote []netip.AddrPort) {
			t.Helper()
			err := table.Open(func(a, b netip.AddrPort) {
				if a == here {
					local = append(local, b)
				}
				if b == here {
					remote = append(remote, a)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			return local, remote
		}
		if local, remote := told(); local != nil || remote != nil {
			t.Errorf("%s: of a listener alone: %v, %v", network, local, remote)
		}
		c := dial(t, here)
		client := []netip.AddrPort{c.LocalAddr().(*net.TCPAddr).AddrPort()}
		if local, remote := told(); local != nil || !slices.Equal(remote, client) {
			t.Errorf("%s: before it is accepted the ends are %v and %v; want that of the client, %v, alone", network, local, remote, client)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if local, remote := told(); !slices.Equal(local, client) || !slices.Equal(remote, client) {
			t.Errorf("%s: the ends are %v and %v; want %v twice", network, local, remote, client)
		}
		for _, x := range []net.Conn{c, accepted} {
			x.(*net.TCPConn).SetLinger(0)
			x.Close()
		}
		if local, remote := told(); local != nil || remote != nil {
			t.Errorf("%s: of a connection that has ended: %v, %v", network, local, remote)
		}
	}
}
