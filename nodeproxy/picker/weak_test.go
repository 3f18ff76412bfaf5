package picker

import (
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
)

// A gateway has a score of its own and one for each service through it: who is told of
// both must be able to tell them apart.
func TestExplainSaysOfWhichConnectionsAWeakScoreIs(t *testing.T) {
	s := layout{distribution: "Any", west: 2, gateways: 1}.snapshot(t, 1)
	c := defaults()
	c.Gateways.Mode, c.Paths.Mode = health.ModeEWMA, health.ModeEWMA
	p := New(c)
	d := resolve(t, p, s, epoch)
	for _, at := range []At{AtNetwork, AtGateway} {
		c, err := p.Pick(d, Tried{}, nil, epoch)
		if err != nil {
			t.Fatal(err)
		}
		p.Opened(&c, epoch)
		p.Done(&c, Outcome{At: at, Fault: true, Reason: "connect"}, epoch)
	}
	var got []string
	for _, v := range p.Explain(d, "", epoch) {
		for _, g := range v.Gateways {
			for _, c := range g.Causes {
				if c.Word == standing.HeldWeak {
					what, _, _ := strings.Cut(c.Sentence(epoch), " (health ")
					got = append(got, what)
				}
			}
		}
	}
	if want := []string{"some connections to this gateway failed", "some connections of this service through it failed"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
