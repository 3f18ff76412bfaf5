package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/gossip"
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

// A network that nobody can dial is no case for firewalls and keys: it lacks an address.
func TestANetworkWithoutAConnectionIsToldByWhatIsMissing(t *testing.T) {
	d := &doors{}
	d.list.Store(&[]gossip.Door{{Network: "west"}, {Network: "north", Addresses: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:15008")}}, {Network: "south"}})
	heard := func(network string) bool { return network == "south" }
	got := map[string]string{}
	for _, n := range d.notices(heard, func(string) error { return nil }) {
		got[n.Subject] = n.Text
	}
	if len(got) != 2 || !strings.Contains(got["west"], "no address of it is known") || !strings.Contains(got["west"], "--address west=ADDRESS") || strings.Contains(got["west"], "firewall") {
		t.Errorf("%q", got)
	}
	if north := got["north"]; !strings.Contains(north, "(at 192.0.2.1:15008)") || !strings.Contains(north, "firewall") {
		t.Errorf("%q", north)
	}
}
