package healthstream

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// countsVoices fails unless voices are what a walk over all that is known finds.
func (s *services) countsVoices(t testing.TB) {
	t.Helper()
	s.mu.RLock()
	defer s.mu.RUnlock()
	want := voices{}
	for _, f := range s.byName {
		for network, k := range f.known {
			want.count(network, k.Deliveries, 1)
		}
	}
	if !maps.EqualFunc(s.voices, want, maps.Equal[map[*speaker]voiceCount, map[*speaker]voiceCount]) {
		t.Errorf("voices are %v; want %v", s.voices, want)
	}
}

// Voices come and go with what is known: of those who are live and of those who are not,
// in several services, and with the last one nothing is left.
func TestVoicesAreCountedByNetwork(t *testing.T) {
	s := newServices(MaxServices, newVerified("west", nil))
	one, two := &speaker{id: record.Instance{1}, gateway: "gw-1"}, &speaker{id: record.Instance{2}, gateway: "gw-2"}
	one.body.Store(&record.Network{})
	two.body.Store(&record.Network{})
	say := func(service string, deliveries ...Delivery) {
		if len(deliveries) == 0 {
			s.unlearn(s.byName[service], "east")
		} else {
			s.learn(s.byName[service], "east", Known{Deliveries: deliveries})
		}
		s.countsVoices(t)
	}
	live := func(x *speaker) Delivery { return Delivery{Instance: x.id, Live: true, proven: true, speaker: x} }
	silent := func(x *speaker) Delivery { return Delivery{Instance: x.id, proven: true, speaker: x} }
	expect := func(when, want string) {
		t.Helper()
		got := ""
		for _, g := range s.gateways("east") {
			got += fmt.Sprintf("%s %t ", g.Name, g.Live)
		}
		if got != want {
			t.Errorf("%s: gateways %q; want %q", when, got, want)
		}
	}
	for _, name := range []string{"a", "b"} {
		s.use(name, true)
	}
	say("a", live(one), silent(two), Delivery{Instance: record.Instance{3}, Live: true})
	expect("of one service", "gw-1 true gw-2 false ")
	say("b", silent(one), live(two))
	expect("of two services", "gw-1 true gw-2 true ")
	two.ended.Store(true)
	expect("a certificate has ended", "gw-1 true ")
	two.ended.Store(false)
	say("a", silent(one))
	expect("none says that gw-1 is live", "gw-1 false gw-2 true ")
	say("b")
	expect("nothing is known of the second service", "gw-1 false ")
	s.mu.Lock()
	s.forget(s.byName["a"])
	s.mu.Unlock()
	if expect("nothing is followed", ""); len(s.voices) != 0 {
		t.Errorf("voices of %d networks are left", len(s.voices))
	}
}

// Gateways of a network are asked for with each change of any service.
func TestGatewaysOfANetworkCostTheSameWithManyServices(t *testing.T) {
	cost := func(n int) time.Duration {
		s := newServices(MaxServices, newVerified("west", nil))
		var deliveries []Delivery
		for i := range byte(2) {
			x := &speaker{id: record.Instance{i}}
			x.body.Store(&record.Network{})
			deliveries = append(deliveries, Delivery{Instance: x.id, Live: true, proven: true, speaker: x})
		}
		for i := range n {
			name := fmt.Sprintf("s%d", i)
			s.use(name, true)
			s.learn(s.byName[name], "east", Known{Deliveries: deliveries})
		}
		best := time.Hour
		for range 200 {
			began := time.Now()
			if len(s.gateways("east")) != 2 {
				t.Fatal("not both gateways")
			}
			best = min(best, time.Since(began))
		}
		return best
	}
	few, many := cost(20), cost(2000)
	if many > 10*few {
		t.Errorf("%v with 2000 services and %v with 20; want about the same", many, few)
	}
}
