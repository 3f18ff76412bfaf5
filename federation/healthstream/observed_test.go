package healthstream

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// observed is what gateways of west have heard that east exports.
type observed struct {
	*world
	east  *speaks
	sites []*site
}

func admitController(id spiffeid.ID) error {
	if id != trust.Workload("controller") {
		return errors.New("not the controller")
	}
	return nil
}

func (w *world) observed(key networkkey.Private, gateways int) *observed {
	o := &observed{world: w, east: w.speaker("east", "gw-1", "1", key)}
	for i := range gateways {
		var s *site
		s = w.gateway(fmt.Sprint("gw-", i+1), func(c *ServerConfig) {
			c.Observers = Observers{Admit: admitController, Offered: func() []string {
				s.mu.Lock()
				defer s.mu.Unlock()
				return slices.Collect(maps.Keys(s.others))
			}}
			c.Holds = func() []string { return []string{"east"} }
		})
		o.sites = append(o.sites, s)
	}
	return o
}

func named(i int) string { return fmt.Sprintf("s%d.default.svc.cluster.local", i) }

func exported(i int, port uint16) record.Record {
	return record.ExportRecord(named(i), record.Export{Name: fmt.Sprint("s", i), Namespace: "default", Ports: []record.Port{{Port: port}}, Scope: record.ScopeGlobal, Identities: []spiffeid.ID{shopID}, Capacity: 1})
}

// tell makes the gateways know what east says of a service now.
func (o *observed) tell(i int, sites ...*site) {
	v := o.east.voice()
	v.Entries = slices.DeleteFunc(v.Entries, func(e record.Entry) bool {
		k, _ := record.DecodeKey(e.Key)
		return k.Service != named(i)
	})
	for _, s := range sites {
		s.mu.Lock()
		if s.others[named(i)] = []Share{shareFrom(v)}; len(v.Entries) == 0 {
			delete(s.others, named(i))
		}
		s.mu.Unlock()
		s.health.Exported(named(i))
	}
}

func (w *world) observer(name string, known networkkey.Known) *node {
	return w.node(name, func(c *ClientConfig) { c.Observe, c.Known, c.Self = true, known, trust.Workload("controller") })
}

// exports are the ports of what n holds for exported, by service.
func (n *node) exports() map[string]uint16 {
	out := map[string]uint16{}
	for _, f := range n.Followed() {
		if k, _ := n.Known("east", f.Service); k.Offer != nil {
			out[f.Service] = k.Offer.Ports[0].Port
		}
	}
	return out
}

// TestAnObserverHoldsWhatIsExported compares what an observer holds with what is exported,
// while exports come, change and go, and streams break.
func TestAnObserverHoldsWhatIsExported(t *testing.T) {
	for seed := range uint64(30) {
		inBubble(t, func(w *world) {
			rng := rand.New(rand.NewPCG(seed, 1))
			key := keyOf(t, "east")
			known := networkkey.Known{"east": {key.Public()}}
			o := w.observed(key, 1+int(seed)%2)
			n := w.observer("controller-1", known)
			want := map[string]uint16{}
			for step := range 60 {
				i := rng.IntN(12)
				switch rng.IntN(8) {
				case 0, 1, 2:
					port := uint16(1 + rng.IntN(3))
					want[named(i)] = port
					o.east.say(exported(i, port))
					o.tell(i, o.sites...)
				case 3, 4:
					delete(want, named(i))
					o.east.withdraw(exported(i, 1))
					o.tell(i, o.sites...)
				case 5:
					w.cut("controller-1")
				case 6:
					time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
				case 7: // news of two changes at once
					o.tell(i, o.sites...)
				}
				if rng.IntN(3) > 0 {
					continue
				}
				time.Sleep(3 * time.Second)
				settle()
				if got := n.exports(); !maps.Equal(got, want) {
					t.Fatalf("seed %d, step %d: holds %v; exported is %v. Not proven: %q", seed, step, got, want, n.Unproven())
				}
				if got := len(n.Followed()); got != len(want) {
					t.Fatalf("seed %d, step %d: follows %d services; want the %d that are exported", seed, step, got, len(want))
				}
				if !n.Whole("east") {
					t.Fatalf("seed %d, step %d: does not hold all of east", seed, step)
				}
			}
			time.Sleep(3 * time.Second)
			settle()
			for _, s := range o.sites {
				for _, x := range s.health.observers.all() {
					if got := len(x.down.follows); got != len(want) {
						t.Errorf("seed %d: gateway %s tells an observer of %d services; want %d", seed, s.Name, got, len(want))
					}
				}
			}
		})
	}
}

func TestHealthCostsAnObserverNothing(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		o := w.observed(key, 1)
		o.east.say(exportOf(shopID))
		n := w.observer("controller-1", networkkey.Known{"east": {key.Public()}})
		o.sites[0].say(service, shareFrom(o.east.voice()))
		o.sites[0].health.Exported(service)
		settle()
		if k, _ := n.Known("east", service); k.Offer == nil {
			t.Fatalf("the export is not known; not proven: %q", n.Unproven())
		}
		time.Sleep(10 * time.Second)
		quiet := w.bytes.Load()
		time.Sleep(10 * time.Second)
		quiet = w.bytes.Load() - quiet
		before := w.bytes.Load()
		for i := range uint32(100) {
			o.east.say(healthOf(i % 10))
			o.sites[0].say(service, shareFrom(o.east.voice()))
			o.sites[0].health.Exported(service) // also if somebody says so
			time.Sleep(100 * time.Millisecond)
		}
		if cost := w.bytes.Load() - before - quiet; cost > 200 {
			t.Errorf("100 changes of health cost an observer %d bytes more than the %d of its beats", cost, quiet)
		}
	})
}

func TestOnlyTheControllerObserves(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		o := w.observed(key, 1)
		o.east.say(exported(1, 80))
		o.tell(1, o.sites...)
		known := networkkey.Known{"east": {key.Public()}}
		proxy := w.node("node-1", func(c *ClientConfig) { c.Observe, c.Known = true, known })
		posing := w.node("node-2", func(c *ClientConfig) { c.Known, c.Self = known, trust.Workload("controller") })
		settle()
		time.Sleep(time.Second)
		for name, n := range map[string]*node{"a node proxy that observes": proxy, "the controller as node proxy": posing} {
			if n.Attached() != 0 {
				t.Errorf("%s is attached", name)
			}
		}
		if got := o.sites[0].health.Nodes(); len(got) != 0 {
			t.Errorf("nodes %v are attached; want none", got)
		}
		if got := proxy.exports(); len(got) != 0 {
			t.Errorf("a node proxy that observes was told %v", got)
		}
	})
}

func TestTooManyObserversAreRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		key := keyOf(t, "east")
		o := w.observed(key, 1)
		attached := 0
		var all []*node
		for i := range maxObservers + 2 {
			all = append(all, w.observer(fmt.Sprint("controller-", i), nil))
		}
		time.Sleep(2 * time.Second)
		for _, n := range all {
			attached += n.Attached()
		}
		if attached != maxObservers || len(o.sites[0].health.observers.all()) != maxObservers {
			t.Errorf("%d observers are attached; want %d", attached, maxObservers)
		}
		all[0].cancel()
		time.Sleep(time.Minute)
		if len(o.sites[0].health.observers.all()) != maxObservers {
			t.Error("the place of an observer that has gone is not given to another one")
		}
	})
}
