package gateway

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// TestRevisedByNameMatchesWhole runs random schedules of services that come, go, change their
// ports, their scope and their aliases, and of pods that join and leave them. Deliveries that
// look at the services of each change set alone publish what a twin does that looks at all.
func TestRevisedByNameMatchesWhole(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 9))
		builder, store := discovery.NewBuilder(0), &discovery.Store{}
		builder.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Source: discovery.Cluster, Name: "west"}, Record: discovery.Network{Name: "west"}})
		snap, _, _ := builder.Commit()
		store.Swap(snap)
		now := time.Unix(1_800_000_000, 0)
		newDeliveries := func() (*deliveries, published) {
			p := published{}
			d := &deliveries{network: "west", store: store, publish: p.hear, told: func(portKey) {}, ports: map[string]map[uint16]*delivery{}, exports: map[string]exported{},
				pods: func(*mesh.Workload, uint16, time.Time) (record.Cause, bool, time.Time) { return 0, false, time.Time{} },
				why:  func(*mesh.Workload, uint16, record.Cause, time.Time) record.Detail { return record.Detail{} }}
			d.start(now)
			return d, p
		}
		named, got := newDeliveries()
		whole, want := newDeliveries()
		keys := func(d *deliveries) (out []string) {
			for host, ports := range d.ports {
				for port := range ports {
					out = append(out, fmt.Sprint(host, ":", port))
				}
			}
			slices.Sort(out)
			return out
		}
		var changes discovery.Changes
		for step := range 60 {
			n := rng.IntN(4)
			name := fmt.Sprint("svc-", n)
			c := discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: "demo/" + name}}
			if rng.IntN(2) == 0 {
				c.Key = discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: fmt.Sprint("pod-", n)}
				w := discovery.Workload{UID: c.Key.Name, Namespace: "demo", Network: "west", Node: "n1", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(n)})}}
				for i := range 4 {
					if rng.IntN(2) == 0 {
						w.Services = append(w.Services, fmt.Sprintf("svc-%d.demo.svc.cluster.local", i))
					}
				}
				if rng.IntN(4) > 0 {
					c.Record = w
				}
			} else if rng.IntN(4) > 0 {
				s := discovery.Service{Name: name, Namespace: "demo", Scope: []string{"cluster", "global", "global"}[rng.IntN(3)], Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}}
				if rng.IntN(2) == 0 {
					s.Ports = append(s.Ports, discovery.ServicePort{Port: 81, TargetPort: 8081})
				}
				if rng.IntN(4) == 0 {
					s.Hostname = fmt.Sprintf("other-%d.example.com", n)
				}
				c.Record = s
			}
			builder.Apply(c)
			snap, more, _ := builder.Commit()
			store.Swap(snap)
			if changes.Workloads == nil {
				changes = more
			} else { // of two commits, as a subscription adds them up
				for host := range more.Services {
					changes.Services[host] = struct{}{}
				}
				changes.All = changes.All || more.All
			}
			if rng.IntN(3) == 0 {
				continue
			}
			now = now.Add(time.Minute)
			named.revised(changes, now)
			named.expire(now) // as every keepEvery
			whole.revised(discovery.Everything(), now)
			changes = discovery.Changes{}
			if !reflect.DeepEqual(got, want) || !slices.Equal(keys(named), keys(whole)) {
				t.Fatalf("seed %d, step %d: published %s of %v; want %s of %v", seed, step, got, keys(named), want, keys(whole))
			}
		}
	}
}

// One change costs a look at its own services, however many there are: of records that a look
// would withdraw only those of the change are withdrawn.
func TestRevisedLooksAtNamedServicesAlone(t *testing.T) {
	b := newBeliever(t)
	host := func(i int) string { return fmt.Sprintf("gone-%d.default.svc.cluster.local", i) }
	for i := range 1000 {
		b.deliveries.ports[host(i)] = map[uint16]*delivery{80: {exported: true}, 81: {exported: true}}
	}
	b.withdrawn = nil
	b.deliveries.revised(discovery.Changes{Services: map[string]struct{}{host(7): {}, "hello.default.svc.cluster.local": {}}}, time.Now())
	if len(b.withdrawn) != 2 {
		t.Errorf("a change of one service looked at %d ports of services that are gone; want its own 2", len(b.withdrawn))
	}
	b.deliveries.revised(discovery.Everything(), time.Now())
	if len(b.withdrawn) != 2000 || len(b.deliveries.ports) != 1 {
		t.Errorf("a change of everything: %d ports withdrawn, %d services left; want 2000 and 1", len(b.withdrawn), len(b.deliveries.ports))
	}
}

func (p published) String() (out string) {
	for _, k := range slices.SortedFunc(maps.Keys(p), func(a, b record.Key) int { return strings.Compare(a.String(), b.String()) }) {
		out += fmt.Sprintf("%v %+v %+v\n", k, p[k].Export, p[k].Health)
	}
	return out
}
