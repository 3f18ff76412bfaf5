package nodeproxy

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// listing is a snapshot with one workload of this node and with gateways of these
// addresses.
func listing(t *testing.T, gateways ...string) *mesh.Snapshot {
	t.Helper()
	c := discovery.DefaultConfig()
	c.Networks = []discovery.Network{{Name: "west"}}
	c.Workloads = []discovery.Workload{{UID: "x", Network: "west", Node: "west-1", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}}
	for _, a := range gateways {
		c.Gateways = append(c.Gateways, discovery.Gateway{Name: "gw-" + strings.ReplaceAll(a, ".", "-"), Network: "west", Address: netip.AddrPortFrom(netip.MustParseAddr(a), mesh.HBONEPort)})
	}
	snap, problems := discovery.Build(1, c)
	if problems != nil {
		t.Fatal(problems)
	}
	return snap
}

type noCertificates struct{}

func (noCertificates) Fetch(context.Context, spiffeid.ID) (*identity.SVID, error) {
	return nil, errors.New("the certificate authority is down")
}

// newTestProxy is a Proxy of a node without workloads and without certificates,
// that follows snap when the test says so.
func newTestProxy(t *testing.T, snap *mesh.Snapshot) *Proxy {
	c := DefaultConfig()
	c.Network, c.Node = "west", "west-9"
	p := newProxy(c, zerolog.Nop())
	p.ids = identity.NewManager(noCertificates{}, zerolog.Nop())
	p.witness = newWitness(p.data, c, p.declared, dialKernel(0), p.changed, zerolog.Nop())
	p.store.Swap(snap)
	t.Cleanup(func() {
		p.stop()
		p.gatewayProbes.Wait()
		p.podProbes.Wait()
		p.witness.prober.Wait()
	})
	return p
}

func TestEachSnapshotSaysWhoIsAGateway(t *testing.T) {
	p := newTestProxy(t, listing(t, "10.0.0.1"))
	p.rediscover(t.Context())
	p.store.Swap(listing(t))
	p.rediscover(t.Context())
	if !p.gateways.has(p.store.Current(), "west", netip.MustParseAddr("10.0.0.1"), time.Now()) {
		t.Error("a gateway that discovery has just dropped is taken for a pod")
	}
}

// What a gateway forwards after discovery has ceased to list it must not be taken
// for a pod's own connection, which may ask for more.
func TestAGatewayIsKnownForAsLongAsItMayDrain(t *testing.T) {
	const gone = "10.0.0.1"
	addr, start := netip.MustParseAddr(gone), time.Unix(1000, 0)
	for name, connected := range map[string]bool{"that never connected": false, "that connected long ago": true} {
		t.Run(name, func(t *testing.T) {
			g := gatewaySources{}
			with, without := listing(t, gone, "10.0.0.2"), listing(t, "10.0.0.2")
			g.revise(with, "west", start)
			if connected && !g.has(with, "west", addr, start) {
				t.Fatal("a listed gateway is none")
			}
			dropped := start.Add(2 * sourceMemory)
			if !g.has(without, "west", addr, dropped) {
				t.Error("taken for a pod before the new snapshot was looked at")
			}
			g.revise(without, "west", dropped)
			g.revise(without, "west", dropped.Add(time.Minute)) // what else discovery does adds nothing
			if !g.has(without, "west", addr, dropped.Add(sourceMemory-1)) {
				t.Error("taken for a pod within the time that it may drain")
			}
			if g.has(without, "west", addr, dropped.Add(sourceMemory)) {
				t.Error("a gateway for ever")
			}
			g.revise(without, "west", dropped.Add(2*sourceMemory))
			g.revise(without, "west", dropped.Add(4*sourceMemory))
			if n := len(g.last); n != 1 {
				t.Errorf("%d addresses are remembered; want that of the listed gateway", n)
			}
		})
	}
}
