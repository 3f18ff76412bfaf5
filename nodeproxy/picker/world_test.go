package picker

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
	"github.com/isthmus-mesh/isthmus/route"
)

const host = "hello.default.svc.cluster.local"

var epoch = time.Unix(1_800_000_000, 0)

// layout is a mesh with a client on east and hello on east, west and north.
type layout struct {
	distribution      string
	east, west, north int
	gateways          int             // of west and of north
	absent            map[string]bool // workloads by UID
	drained           map[string]bool // gateways by key
	capacity          int
}

func (l layout) snapshot(tb testing.TB, revision uint64) *mesh.Snapshot {
	tb.Helper()
	c := discovery.DefaultConfig()
	for i, n := range []string{"east", "west", "north"} {
		c.Networks = append(c.Networks, discovery.Network{Name: n})
		for g := range l.gateways {
			c.Gateways = append(c.Gateways, discovery.Gateway{Name: fmt.Sprintf("gw-%d", g+1), Network: n, ServiceAccount: "isthmus-system/gateway-" + n, Drained: l.drained[fmt.Sprintf("%s/gw-%d", n, g+1)],
				Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i), 255, byte(g + 1)}), 15008)})
		}
	}
	c.Services = []discovery.Service{{Name: "hello", Global: true, TrafficDistribution: l.distribution, Ports: []discovery.ServicePort{{Name: "a", Port: 80, TargetPort: 8080}, {Name: "b", Port: 81, TargetPort: 8081}}}}
	client := discovery.Workload{UID: "shop", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.254.1")}}
	client.Locality.Region, client.Locality.Zone = "r", "a"
	c.Workloads = append(c.Workloads, client, discovery.Workload{UID: "cafe", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.254.2")}})
	for i, n := range []struct {
		name string
		pods int
	}{{"east", l.east}, {"west", l.west}, {"north", l.north}} {
		for j := range n.pods {
			uid := fmt.Sprintf("%s-%05d", n.name, j)
			if l.absent[uid] {
				continue
			}
			w := discovery.Workload{UID: uid, Network: n.name, Node: fmt.Sprintf("%s-n%d", n.name, j%50), Services: []string{host},
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i), 2 + byte(j>>8), byte(j)})}}
			if l.capacity > 0 {
				n := uint32(l.capacity)
				w.Capacity = &n
			}
			w.Locality.Region, w.Locality.Zone = "r", []string{"a", "b"}[j%2]
			c.Workloads = append(c.Workloads, w)
		}
	}
	s, problems := discovery.Build(revision, c)
	if problems != nil {
		tb.Fatal(problems)
	}
	return s
}

func defaults() Config {
	c := health.DefaultConfig()
	seed := uint64(0)
	return Config{Network: "east", Own: c, Gateways: c, Paths: c, Shares: health.Config{Mode: health.ModeOff}, Endpoints: true,
		Jitter: func() float64 { return 0.5 }, Seed: func() uint64 { seed++; return seed }}
}

func resolve(tb testing.TB, p *Picker, s *mesh.Snapshot, now time.Time) *Destination {
	tb.Helper()
	d, err := p.Resolve(s, flow(s), now)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func flow(s *mesh.Snapshot) route.Flow {
	return route.Flow{Source: s.Workload("shop"), Host: host, Port: 80}
}

// delivers is the health that one word for all gateways gives.
func delivers(ready, healthy uint32, exceptions ...mesh.EndpointID) Health {
	return Health{Groups: []Group{{{Ready: ready, ReadyCapacity: ready, Healthy: healthy, HealthyCapacity: healthy}}}, Exceptions: exceptions}
}

// holding is a Kept that has a session with each pod that may be chosen, by way of each
// gateway that is to be used, and offers one after the other.
type holding struct {
	p    *Picker
	snap *mesh.Snapshot
	now  time.Time
	next int
}

func (h *holding) Choose(k Share, _ string, fits func(warmset.Choice) bool) (warmset.Choice, bool) {
	svc := h.snap.Service(host)
	pods := h.snap.Members(svc, k.Network)
	w := h.p.Warm(k, h.snap.Gateways(k.Network), len(pods), h.now)
	for range len(pods) * len(w.Gateways) {
		h.next++
		x := warmset.Choice{ID: uint64(h.next)}
		pod := pods[h.next%len(pods)]
		x.Endpoint, x.Identity, x.Gateway = pod.Endpoint, pod.Identity, w.Gateways[h.next/len(pods)%len(w.Gateways)]
		if !slices.Contains(w.Out, x.Endpoint) && (w.Reaches == nil || w.Reaches(x.Gateway, x.Endpoint)) && fits(x) {
			return x, true
		}
	}
	return warmset.Choice{}, false
}
