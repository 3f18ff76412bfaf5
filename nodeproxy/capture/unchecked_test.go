//go:build linux

package capture

import (
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who asks by UDP without a checksum (SO_NO_CHECK), which IPv4 allows, is answered, and so is who is answered without one.
func TestQueriesWithoutAChecksumAreAnswered(t *testing.T) {
	p := newPod(t)
	resolvers := []netip.Addr{netip.MustParseAddr(otherAddress)}
	n, err := CaptureNames(p.ns, resolvers)
	must(t, err)
	defer n.Close()
	without := func(no int, next func(network, address string, c syscall.RawConn) error) func(network, address string, c syscall.RawConn) error {
		return func(network, address string, c syscall.RawConn) error {
			if next != nil {
				if err := next(network, address, c); err != nil {
					return err
				}
			}
			var inner error
			if err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, no) }); err != nil {
				return err
			}
			return inner
		}
	}
	for _, answered := range []int{0, 1} {
		lc := net.ListenConfig{Control: without(answered, p.ns.Control)}
		u, err := lc.ListenPacket(t.Context(), "udp", QueriesTo(resolvers)[0].String())
		must(t, err)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b := make([]byte, 10)
			for {
				_, from, err := u.ReadFrom(b)
				if err != nil {
					return
				}
				u.WriteTo([]byte("proxy"), from)
			}
		}()
		for _, asked := range []int{0, 1} {
			c, err := p.dial("udp", otherAddress+":53", without(asked, nil))
			must(t, err)
			c.SetDeadline(time.Now().Add(2 * time.Second))
			b := make([]byte, 10)
			c.Write([]byte("?"))
			k, err := c.Read(b)
			if string(b[:k]) != "proxy" {
				t.Errorf("asked with SO_NO_CHECK %d, answered with %d: %q, %v", asked, answered, b[:k], err)
			}
			c.Close()
		}
		u.Close()
		<-ended
	}
}
