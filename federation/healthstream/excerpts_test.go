package healthstream

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// cluster is what the gateways of a network read discovery from.
type cluster struct {
	mu       sync.Mutex
	b        *discovery.Builder
	snap     *mesh.Snapshot
	replicas []*replica
}

// replica is a gateway's view of it.
type replica struct {
	*site
	index                *excerpt.Index
	synchronised, behind bool // by the cluster's mu
}

func newCluster() *cluster {
	c := &cluster{b: discovery.NewBuilder(0)}
	c.b.Apply(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}})
	c.snap, _, _ = c.b.Commit()
	return c
}

// gateway starts one that reads the cluster.
func (c *cluster) gateway(w *world, name string, synchronised bool) *replica {
	r := &replica{index: excerpt.NewIndex("west", c.snap), synchronised: synchronised}
	r.site = w.gateway(name, c.offers(r))
	c.replicas = append(c.replicas, r)
	return r
}

func (c *cluster) offers(r *replica) func(*ServerConfig) {
	return func(cfg *ServerConfig) {
		cfg.Excerpts = r.index
		cfg.Offer = func() (bool, bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			return r.synchronised, r.behind
		}
	}
}

// restart is the next process of a gateway: it has just read the cluster.
func (c *cluster) restart(w *world, r *replica) {
	r.stop()
	settle()
	r.index = excerpt.NewIndex("west", c.snap)
	r.site = w.start(r.Gateway, c.offers(r))
}

func (c *cluster) set(r *replica, synchronised, behind bool) {
	c.mu.Lock()
	r.synchronised, r.behind = synchronised, behind
	c.mu.Unlock()
}

// say changes it, and all gateways hear.
func (c *cluster) say(records ...discovery.Change) {
	c.b.Apply(records...)
	var changes discovery.Changes
	c.snap, changes, _ = c.b.Commit()
	for _, r := range c.replicas {
		r.index.Revise(c.snap, changes)
	}
}

func pod(name, node string, services ...string) discovery.Change {
	w := discovery.Workload{UID: name, Network: "west", Node: node, Services: services, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, name[len(name)-1], name[0]})}}
	return discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: name}, Record: w}
}

func serviceOf(name string) discovery.Change {
	return discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Name: name}, Record: discovery.Service{Name: name, Ports: []discovery.ServicePort{{Port: 80}}}}
}

func hostOf(name string) string { return name + ".default.svc.cluster.local" }

// reader is a node proxy without a file.
type reader struct {
	*node
	keeper *excerpt.Keeper

	mu   sync.Mutex
	b    *discovery.Builder
	snap *mesh.Snapshot
}

func (w *world) reader(name string) *reader {
	r := &reader{b: discovery.NewBuilder(0)}
	r.keeper = excerpt.NewKeeper(excerpt.NewHeld("west", name, "cluster.local"), func(c ...discovery.Change) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.b.Apply(c...)
		r.snap, _, _ = r.b.Commit()
	}, func(name string) bool { return r.Follows(name) }, time.Now)
	r.node = w.node(name, func(c *ClientConfig) { c.Excerpts = r.keeper })
	w.wg.Go(func() {
		for {
			select {
			case <-r.done:
				return
			case <-time.After(time.Second):
				r.keeper.Tend()
			}
		}
	})
	return r
}

// has lists the workloads that it knows.
func (r *reader) has() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snap == nil {
		return nil
	}
	for _, w := range r.snap.Workloads() {
		out = append(out, w.UID)
	}
	return out
}

func (r *reader) wants(when string, want ...string) {
	r.world.t.Helper()
	settle()
	if got := r.has(); !slices.Equal(got, want) {
		r.world.t.Errorf("%s: %s knows %v; want %v", when, r.name, got, want)
	}
}

func TestANodeProxyIsToldOfItsProvenNodeAndWhatItAsksFor(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCluster()
		c.say(serviceOf("web"), serviceOf("db"), pod("a1", "n1", hostOf("web")), pod("a2", "n2", hostOf("web"), hostOf("db")), pod("a3", "n3"))
		c.gateway(w, "gw-1", true)
		one, two := w.reader("n1"), w.reader("n2")
		one.attached(1)
		two.attached(1)
		one.wants("attached", "a1")
		two.wants("attached", "a2")
		if !one.Use(context.Background(), hostOf("web"), time.Second) {
			t.Error("the first use of a service did not wait for what it is")
		}
		one.wants("asked for web", "a1", "a2")
		one.Use(context.Background(), "10.1.51.97", time.Second) // a3
		one.wants("asked for an address", "a1", "a2", "a3")
		one.Use(context.Background(), hostOf("nosuch"), time.Second)
		began := time.Now()
		one.Use(context.Background(), hostOf("nosuch"), time.Second)
		if d := time.Since(began); d > 0 {
			t.Errorf("what is not there was waited for again, for %v", d)
		}
		time.Sleep(10 * time.Second) // beats
		before := w.bytes.Load()
		c.say(pod("b3", "n3"), pod("b4", "n3", hostOf("db")))
		synctest.Wait()
		time.Sleep(time.Millisecond * 10)
		synctest.Wait()
		if n := w.bytes.Load() - before; n > 0 {
			t.Errorf("%d bytes for pods that neither node proxy uses", n)
		}
		c.say(pod("b5", "n3", hostOf("web")))
		one.wants("a pod of web", "a1", "a2", "a3", "b5")
		two.wants("a pod of web elsewhere", "a2")
		one.Forget(hostOf("web"))
		time.Sleep(2 * time.Second)
		one.wants("web is forgotten", "a1", "a3")
	})
}

func TestAGatewayThatDoesNotKnowItsClusterTellsNothingOfIt(t *testing.T) {
	inBubble(t, func(w *world) {
		c := newCluster()
		empty := c.gateway(w, "gw-1", false)
		n := w.reader("n1")
		n.attached(1)
		if n.keeper.Told() || n.Leader() != "" {
			t.Error("a gateway that knows nothing leads")
		}
		c.say(serviceOf("web"), pod("a1", "n1", hostOf("web")))
		full := c.gateway(w, "gw-2", true)
		n.attached(2)
		n.wants("with a gateway that knows", "a1")
		if n.Leader() != "gw-2" {
			t.Errorf("%q leads", n.Leader())
		}
		c.set(empty, true, false)
		time.Sleep(2 * time.Second)
		if n.Leader() != "gw-2" {
			t.Errorf("%q leads, and nothing is wrong with gw-2", n.Leader())
		}
		c.set(full, true, true) // it has lost its API server
		time.Sleep(2 * time.Second)
		if n.Leader() != "gw-1" {
			t.Errorf("%q leads, which is behind", n.Leader())
		}
		n.wants("another leads", "a1")
		c.set(empty, true, true)
		time.Sleep(2 * time.Second)
		if n.Leader() != "gw-1" {
			t.Errorf("%q leads: both are behind, and one has led", n.Leader())
		}
		empty.stop()
		full.stop()
		time.Sleep(time.Hour)
		n.wants("an hour without gateways", "a1")
	})
}

// Gateways restart, streams are cut, gateways lose their source for a while, pods come and
// go: nothing that is there all the time vanishes, and in the end all is as it is.
func TestWhatIsThereStaysWhateverGatewaysDo(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(w *world) {
				r := rand.New(rand.NewPCG(seed, 7))
				c := newCluster()
				c.say(serviceOf("web"), pod("k1", "n1", hostOf("web")), pod("k2", "n2", hostOf("web")))
				for _, name := range []string{"gw-1", "gw-2", "gw-3"} {
					c.gateway(w, name, true)
				}
				n := w.reader("n1")
				n.attached(3)
				n.Use(context.Background(), hostOf("web"), time.Second)
				n.wants("at first", "k1", "k2")
				there := map[string]string{}
				for range 60 {
					switch x := c.replicas[r.IntN(3)]; r.IntN(6) {
					case 0:
						c.restart(w, x)
					case 1:
						w.cut("n1")
					case 2:
						c.set(x, true, r.IntN(2) == 0)
					case 3, 4:
						name, node := fmt.Sprintf("v%d", r.IntN(8)), fmt.Sprintf("n%d", 1+r.IntN(3))
						if delete(there, name); r.IntN(2) == 0 {
							there[name] = node
							c.say(pod(name, node, hostOf("web")))
						} else {
							c.say(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: name}})
						}
					default:
						time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
					}
					time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
					synctest.Wait()
					if have := strings.Join(n.has(), " "); !strings.HasPrefix(have, "k1 k2") {
						t.Fatalf("it knows %s; k1 and k2 have been there all the time", have)
					}
				}
				for _, x := range c.replicas {
					c.set(x, true, false)
				}
				n.attached(3)
				time.Sleep(excerpt.LongDoubt + 2*time.Second)
				want := []string{"k1", "k2"}
				for name := range there {
					want = append(want, name)
				}
				slices.Sort(want)
				n.wants("in the end", want...)
			})
		})
	}
}
