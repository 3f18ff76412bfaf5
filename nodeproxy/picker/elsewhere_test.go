package picker

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Elsewhere says yes exactly if the next choice can be somebody healthy who was not tried,
// and takes nothing.
func TestElsewhereIsWhereTheNextChoiceGoes(t *testing.T) {
	for _, x := range []struct {
		name       string
		east, west int
		tried      int // of east, then of west
		sick       int // of east, from the last one on
		health     func(west []mesh.EndpointID) (Health, bool)
		want       bool
	}{
		{name: "another pod", east: 2, tried: 1, want: true},
		{name: "no other pod", east: 1, tried: 1},
		{name: "the other pod is sick", east: 2, tried: 1, sick: 1},
		{name: "another network", east: 1, west: 1, tried: 1, want: true},
		{name: "another pod of another network", west: 2, tried: 1, want: true},
		{name: "no other pod of another network", west: 1, tried: 1},
		{name: "two of three were tried", west: 3, tried: 2, want: true},
		{name: "the network says that nobody else is healthy", west: 2, tried: 1, health: func(ids []mesh.EndpointID) (Health, bool) { return delivers(2, 1, ids[1]), true }},
		{name: "the network says that others are healthy", west: 3, tried: 1, health: func(ids []mesh.EndpointID) (Health, bool) { return delivers(3, 2, ids[2]), true }, want: true},
	} {
		s := layout{distribution: "Any", east: x.east, west: x.west, gateways: 1}.snapshot(t, 1)
		var ids []mesh.EndpointID
		for _, n := range []string{"east", "west"} {
			for _, w := range s.Members(s.Service(host), n) {
				ids = append(ids, w.Endpoint)
			}
		}
		c := defaults()
		if x.health != nil {
			c.Health = func(k Share) (Health, bool) {
				if k.Network != "west" {
					return Health{}, false
				}
				return x.health(ids)
			}
		}
		p := New(c)
		d := resolve(t, p, s, epoch)
		for _, w := range s.Members(s.Service(host), "east")[x.east-x.sick:] {
			cell := p.pods.Find(health.Key{Endpoint: w.Endpoint, Port: 8080})
			for range 3 {
				cell.Fail("refused", epoch)
			}
		}
		before := p.Load()
		if got := p.Elsewhere(d, Tried{Pods: ids[:x.tried]}, epoch); got != x.want {
			t.Errorf("%s: %v, want %v", x.name, got, x.want)
		}
		if p.Load() != before {
			t.Errorf("%s: it has taken something", x.name)
		}
		if masked := d.index.Masked(); masked != 0 {
			t.Errorf("%s: %d candidates are left masked", x.name, masked)
		}
	}
}

// Who goes back goes there, whatever is better by now, if it is still there.
func TestAChoiceGoesBack(t *testing.T) {
	s := layout{distribution: "Any", east: 5, west: 5, gateways: 2}.snapshot(t, 1)
	p := New(defaults())
	d := resolve(t, p, s, epoch)
	for range 20 {
		for _, w := range append(s.Members(s.Service(host), "east"), s.Members(s.Service(host), "west")...) {
			c, err := p.Pick(d, Tried{Pods: []mesh.EndpointID{w.Endpoint}, Networks: []string{w.Network}, Back: Place{w.Network, w.Endpoint}}, nil, epoch)
			if err != nil {
				t.Fatal(err)
			}
			if c.Network() != w.Network || c.Chosen() != w.Endpoint || c.Kept.ID != 0 || c.Reserved != 0 {
				t.Errorf("went to %s %v; want %s %v, on a session of its own", c.Network(), c.Chosen(), w.Network, w.Endpoint)
			}
			p.Done(&c, Outcome{}, epoch)
		}
		c, err := p.Pick(d, Tried{Back: Place{"north", 1}}, nil, epoch)
		if err != nil {
			t.Fatal(err)
		}
		p.Done(&c, Outcome{}, epoch)
	}
	if l := p.Load(); l != (Load{}) {
		t.Errorf("%+v is left", l)
	}
}
