//go:build linux

package capture

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// A client may have any port, such as one that its node's masquerading has drawn: the connection to the
// application, which has the client's address, never takes one that the client itself has.
func TestPortsOfAClientAreNotTakenForItsApplication(t *testing.T) {
	w := newWorldAll(t)
	must(t, w.In("shop-1", func() error { return command("sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40063") }))
	to := addresses["shop-1"] + ":8080"
	for port := uint16(40001); port < 40050; port += 2 {
		must(t, w.In("gateway", func() error {
			d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addresses["gateway"]), port))}
			c, err := d.Dial("tcp", to)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				began := time.Now()
				hear(t, c)
				if took := time.Since(began); took > time.Second {
					t.Errorf("port %d: the application is reached after %v", port, took)
				}
			}
			return err
		}))
	}
	for range 10 {
		began := time.Now()
		text, err := w.call("gateway", to)
		if took := time.Since(began); err != nil || took > time.Second || text != "shop-1 sees "+addresses["gateway"] {
			t.Errorf("a call is answered after %v: %q, %v", took, text, err)
		}
	}
}
