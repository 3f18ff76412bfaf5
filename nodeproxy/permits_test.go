package nodeproxy

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// madePeer is a session of a client, without one.
type madePeer struct{ id spiffeid.ID }

func (m madePeer) Peer() hbone.Peer     { return hbone.Peer{ID: m.id} }
func (m madePeer) RemoteAddr() net.Addr { return madeAddress }

var (
	madeAddress = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 1}
	madeApp     = netip.MustParseAddrPort("10.0.0.1:8080")
)

// madeConnection counts how often it was cut.
type madeConnection struct {
	permit *permit
	client int
	cuts   int
	denied bool // by the model
	opened bool
}

func (m *madeConnection) cut() { m.cuts++ }

// New connections to a pod wait while its open ones are judged anew: once for all of one client.
func TestRevisionAsksOnceForEachClient(t *testing.T) {
	pod := &mesh.Workload{UID: "pod", Namespace: "demo", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Capacity: 1}
	store := &discovery.Store{}
	store.Swap(mesh.NewSnapshot(1, mesh.Parts{Workloads: []*mesh.Workload{pod}}))
	s := newPermits("pod", store)
	const connections = 2000
	for i := range connections {
		s.ask(madePeer{spiffeid.RequireFromString(fmt.Sprintf("spiffe://cluster.local/ns/demo/sa/client-%d", i%4))}, pod, madeApp)
	}
	deny := &policy.Authorization{Metadata: policy.Metadata{Namespace: "demo", Called: "deny"}, Action: policy.Deny}
	if n := testing.AllocsPerRun(5, func() { // each decision takes some
		edit := store.Current().Edit()
		edit.SetPolicies(policy.NewSet("root", []policy.Object{deny}))
		store.Swap(edit.Snapshot(store.Current().Revision + 1))
		s.revise()
	}); n > connections/2 || len(s.held) != connections {
		t.Errorf("%v allocations for %d connections of 4 clients, of which %d may be", n, connections, len(s.held))
	}
}

// What holds after each step of whatever order in which policies change, connections come, are
// opened and end, and permits are revised: who is asked gets the answer of the policies of that
// moment; after a revision no connection is open that the policies of that moment deny, those that
// they deny have been cut once if they were open, and nobody else was.
func TestPermitsFollowPolicies(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	clients := make([]madePeer, 4)
	for i := range clients {
		clients[i].id = spiffeid.RequireFromString(fmt.Sprintf("spiffe://cluster.local/ns/demo/sa/client-%d", i))
	}
	cuts, refusals := 0, 0
	for range 300 {
		pod := &mesh.Workload{UID: "pod", Namespace: "demo", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Capacity: 1}
		store := &discovery.Store{}
		store.Swap(mesh.NewSnapshot(1, mesh.Parts{Workloads: []*mesh.Workload{pod}}))
		s := newPermits("pod", store)
		denied := map[int]bool{} // by the current policies: the model
		var open []*madeConnection
		for step := range 60 {
			switch r.IntN(6) {
			case 0: // other policies
				edit := store.Current().Edit()
				if r.IntN(4) == 0 {
					edit.DeleteWorkload("pod") // what it was still counts
				} else {
					edit.PutWorkload(pod, nil)
				}
				var rules []policy.Rule
				denied = map[int]bool{}
				for i, c := range clients {
					if r.IntN(3) == 0 {
						denied[i] = true
						rules = append(rules, policy.Rule{policy.Clause{policy.Match{Principals: policy.Field[policy.Text]{Is: []policy.Text{policy.TextOf(c.id.String()[len("spiffe://"):])}}}}})
					}
				}
				edit.SetPolicies(policy.NewSet("root", []policy.Object{&policy.Authorization{Metadata: policy.Metadata{Namespace: "demo", Called: "deny"}, Action: policy.Deny, Rules: rules}}))
				store.Swap(edit.Snapshot(store.Current().Revision + 1))
			case 1, 2:
				i := r.IntN(len(clients))
				p, d := s.ask(clients[i], pod, madeApp)
				if (p != nil) != d.Allowed() || d.Allowed() == denied[i] {
					t.Fatalf("seed %d, step %d: client %d is answered %s, denied = %v", seed, step, i, d, denied[i])
				}
				if p == nil {
					refusals++
					continue
				}
				open = append(open, &madeConnection{permit: p, client: i})
			case 3:
				if len(open) > 0 {
					if c := open[r.IntN(len(open))]; !c.opened {
						c.opened = true
						c.permit.opened(c)
					}
				}
			case 4:
				if len(open) > 0 {
					i := r.IntN(len(open))
					c := open[i]
					if revoked := c.permit.end(); (revoked != nil) != c.denied {
						t.Fatalf("seed %d, step %d: a connection ends with %v, denied = %v", seed, step, revoked, c.denied)
					}
					open = append(open[:i], open[i+1:]...)
				}
			case 5:
				s.revise()
				for _, c := range open {
					c.denied = c.denied || denied[c.client]
				}
			}
			for _, c := range open {
				want := 0
				if c.denied && c.opened {
					want = 1
				}
				if c.cuts != want || (c.permit.revoked() != nil) != c.denied {
					t.Fatalf("seed %d, step %d: a connection was cut %d times, want %d; revoked %v, denied = %v", seed, step, c.cuts, want, c.permit.revoked(), c.denied)
				}
				cuts += c.cuts
			}
		}
		for _, c := range open {
			c.permit.end()
		}
		if len(s.held) != 0 {
			t.Fatalf("seed %d: %d connections are kept that are over", seed, len(s.held))
		}
	}
	if cuts < 100 || refusals < 100 {
		t.Errorf("%d cuts and %d refusals: the test proves nothing", cuts, refusals)
	}
}

// What holds after each step holds when all of it happens at once: a connection that no policy has ever denied
// is not cut, and when it is quiet those that the policies deny have been, once, and nobody asks in vain.
func TestPermitsFollowPoliciesAtOnce(t *testing.T) {
	const clients, rounds = 6, 300 // client 0 is never denied
	id := func(i int) madePeer {
		return madePeer{spiffeid.RequireFromString(fmt.Sprintf("spiffe://cluster.local/ns/demo/sa/client-%d", i))}
	}
	for seed := range uint64(20) {
		pod := &mesh.Workload{UID: "pod", Namespace: "demo", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Capacity: 1}
		store := &discovery.Store{}
		store.Swap(mesh.NewSnapshot(1, mesh.Parts{Workloads: []*mesh.Workload{pod}}))
		s := newPermits("pod", store)
		var denied map[int]bool
		var all sync.WaitGroup
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for range rounds {
				denied = map[int]bool{}
				var list []policy.Object
				for i := range clients * 4 { // more than are decided anew each time
					name := id(i % clients).id.String()[len("spiffe://"):]
					a := &policy.Authorization{Metadata: policy.Metadata{Namespace: "demo", Called: fmt.Sprint(i)}, Action: policy.Deny}
					if i > 0 && i < clients && r.IntN(3) == 0 {
						denied[i] = true
						a.Rules = []policy.Rule{{policy.Clause{policy.Match{Principals: policy.Field[policy.Text]{Is: []policy.Text{policy.TextOf(name)}}}}}}
					}
					list = append(list, a)
				}
				edit := store.Current().Edit()
				edit.SetPolicies(policy.NewSet("root", list))
				store.Swap(edit.Snapshot(store.Current().Revision + 1))
				if r.IntN(2) == 0 {
					s.revise()
				}
			}
		})
		open := make([][]*onceCut, clients)
		for i := range clients {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(i+1)))
				for range rounds {
					p, d := s.ask(id(i), pod, madeApp)
					if p == nil && (i == 0 || d.Allowed()) {
						t.Errorf("client %d is answered %s", i, d)
					}
					if p != nil {
						c := &onceCut{permit: p}
						p.opened(c)
						open[i] = append(open[i], c)
					}
					if n := len(open[i]); n > 0 && r.IntN(3) == 0 {
						c := open[i][n-1]
						if open[i] = open[i][:n-1]; (c.permit.end() != nil) != (c.cuts.Load() > 0) && i == 0 {
							t.Errorf("client %d ends otherwise than it was cut", i)
						}
					}
				}
			})
		}
		all.Wait()
		s.revise()
		for i, list := range open {
			for _, c := range list {
				revoked, cuts := c.permit.revoked() != nil, int(c.cuts.Load())
				if cuts > 1 || (cuts == 1) != revoked || i == 0 && revoked || denied[i] && !revoked {
					t.Fatalf("seed %d: a connection of client %d was cut %d times, revoked %v; denied %v", seed, i, cuts, revoked, denied[i])
				}
				c.permit.end()
			}
		}
		if len(s.held) != 0 {
			t.Fatalf("seed %d: %d connections are kept that are over", seed, len(s.held))
		}
	}
}

// onceCut counts how often it was cut, by anybody.
type onceCut struct {
	permit *permit
	cuts   atomic.Int32
}

func (c *onceCut) cut() { c.cuts.Add(1) }

// A policy that concerns other pods alone has no open connection judged anew.
func TestAPolicyOfOthersJudgesNobody(t *testing.T) {
	pod := &mesh.Workload{UID: "pod", Namespace: "demo", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Capacity: 1}
	store := &discovery.Store{}
	store.Swap(mesh.NewSnapshot(1, mesh.Parts{Workloads: []*mesh.Workload{pod}}))
	s := newPermits("pod", store)
	p, _ := s.ask(madePeer{spiffeid.RequireFromString("spiffe://cluster.local/ns/demo/sa/a")}, pod, madeApp)
	by := p.by
	for _, ns := range []string{"other", "demo"} {
		edit := store.Current().Edit()
		edit.SetPolicies(policy.NewSet("root", []policy.Object{&policy.Authorization{Metadata: policy.Metadata{Namespace: ns, Called: "x"}, Action: policy.Deny}}))
		store.Swap(edit.Snapshot(store.Current().Revision + 1))
		if s.revise(); (p.by == by) != (ns == "other") {
			t.Errorf("a policy of %s: judged anew: %v", ns, p.by != by)
		}
	}
}
