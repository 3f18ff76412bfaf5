package gateway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// recordsHeld is what deliveries have published and not withdrawn.
type recordsHeld map[record.Key]record.Record

func (p recordsHeld) take(records []record.Record, withdrawn ...record.Key) {
	for _, r := range records {
		p[r.Key] = r
	}
	for _, k := range withdrawn {
		delete(p, k)
	}
}

// TestExportRecordFollowsService runs random schedules in which the pods of a Service of the own cluster come, change in
// any way and go. As long as the Service is exported, its export and health records are there and are the latest, and
// only identities and capacity of the export change. Connections are served, or refused for want of an endpoint. When
// the Service is not exported any more, no record is left. See also TestExportFollowsServiceNotPods of discovery/kube.
func TestExportRecordFollowsService(t *testing.T) {
	const host = "hello.demo.svc.cluster.local"
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		builder, store, got := discovery.NewBuilder(0), &discovery.Store{}, recordsHeld{}
		builder.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
		snap, _, _ := builder.Commit()
		store.Swap(snap)
		d := &deliveries{network: "west", store: store, publish: got.take, told: func(portKey) {}, ports: map[string]map[uint16]*delivery{}, exports: map[string]exported{},
			pods: func(*mesh.Workload, uint16, time.Time) (record.Cause, bool, time.Time) { return 0, false, time.Time{} },
			why:  func(*mesh.Workload, uint16, record.Cause, time.Time) record.Detail { return record.Detail{} }}
		now := time.Unix(1_800_000_000, 0)
		d.start(now)
		service := discovery.Service{Name: "hello", Namespace: "demo", Home: true, Created: 7, Headless: rng.IntN(2) == 0,
			Ports: []discovery.ServicePort{{Name: "http", Port: 80, TargetName: "web"}, {Name: "admin", Port: 9000, TargetPort: 9000}}}
		want, there := false, map[string]bool{}
		for step := range 80 {
			uid := fmt.Sprint("hello-", rng.IntN(3))
			c := discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Source: discovery.Cluster, Name: uid}}
			switch {
			case step == 0 || rng.IntN(20) == 0:
				c.Key = discovery.Key{Kind: discovery.KindService, Source: discovery.Cluster, Name: "demo/hello"}
				service.Scope = []string{"cluster", "global", "global"}[rng.IntN(3)]
				if want = service.Scope == "global"; rng.IntN(4) > 0 {
					c.Record = service
				} else {
					want = false
				}
			case there[uid] && rng.IntN(2) == 0:
				delete(there, uid)
			default:
				there[uid] = true
				w := discovery.Workload{UID: uid, Namespace: "demo", ServiceAccount: fmt.Sprint("sa-", rng.IntN(2)), Network: "west", Node: "n1", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, uid[6]})},
					State: []string{"ready", "notReady", "serving", "terminating"}[rng.IntN(4)], Protocol: []string{"", "", "TCP"}[rng.IntN(3)]}
				if rng.IntN(2) == 0 {
					w.Ports = []discovery.NamedPort{{Name: "web", Port: 8080}}
				}
				if rng.IntN(4) > 0 { // else no EndpointSlice lists it as a member yet
					w.Services = []string{host}
				}
				c.Record = w
			}
			now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			builder.Apply(c)
			snap, changes, _ := builder.Commit()
			store.Swap(snap)
			d.revised(changes, now)

			r, is := got[exportKey(host)]
			if is != want {
				t.Fatalf("seed %d, step %d: exported %v; want %v, with pods %v", seed, step, is, want, there)
			}
			if !want {
				if len(got) > 0 {
					t.Fatalf("seed %d, step %d: not exported, and these records are left: %v", seed, step, got)
				}
				continue
			}
			x, svc := r.Export, snap.Named(host)
			if fmt.Sprint(x.Ports) != "[{http 80} {admin 9000}]" || x.Headless != service.Headless || x.Created != 7 || r.Validate() != nil {
				t.Fatalf("seed %d, step %d: the export is %+v: %v; want ports 80 and 9000, headless %v, created 7", seed, step, *x, r.Validate(), service.Headless)
			}
			if e, _ := mesh.ExportOf(svc, snap.Members(svc, "west")); !reflect.DeepEqual(exportOf(e), *x) {
				t.Fatalf("seed %d, step %d: published is %+v; the latest is %+v", seed, step, *x, e)
			}
			for _, p := range x.Ports {
				if h := got[healthKey(portKey{host, p.Port})]; h.Health == nil || len(x.Identities) == 0 && h.Health.Ready > 0 {
					t.Fatalf("seed %d, step %d: the health of port %d is %+v", seed, step, p.Port, h.Health)
				}
				var refused *route.Error
				if e, err := route.Export(snap, "west", fmt.Sprint(host, ":", p.Port)); err == nil && len(e.Members) == 0 || err != nil && (!errors.As(err, &refused) || refused.Kind != route.NoEndpoint) {
					t.Fatalf("seed %d, step %d: a connection to port %d: %v; want it served, or refused for want of an endpoint", seed, step, p.Port, err)
				}
			}
		}
	}
}
