package picker

import (
	"slices"
	"testing"
)

// A gateway that is drained gets nothing while another one serves, and explain names it all the
// same, or whoever looks for it thinks that this process has never heard of it. When no other
// serves, it is used, and a network with one that stays goes before.
func TestADrainedGatewayIsTheLastChoice(t *testing.T) {
	l := layout{distribution: "Any", west: 2, north: 2, gateways: 2, drained: map[string]bool{"west/gw-2": true}}
	s := l.snapshot(t, 1)
	p := New(defaults())
	counts := func(tried Tried) map[string]int {
		t.Helper()
		got := map[string]int{}
		for range 200 {
			c, err := p.Pick(resolve(t, p, s, epoch), tried, nil, epoch)
			if err != nil {
				t.Fatal(err)
			}
			got[GatewayKey(c.Gateway)]++
			p.Done(&c, Outcome{Responded: true}, epoch)
		}
		return got
	}
	if got := counts(Tried{}); got["west/gw-2"] > 0 || got["west/gw-1"] < 50 || got["north/gw-2"] < 20 {
		t.Errorf("%v; want nothing by west/gw-2", got)
	}
	if got := counts(Tried{Gateways: []string{"west/gw-1"}}); got["west/gw-2"] > 0 || got["west/gw-1"] > 0 {
		t.Errorf("%v; want all by north, whose gateways stay", got)
	}
	if got := counts(Tried{Gateways: []string{"west/gw-1"}, Networks: []string{"north"}}); got["west/gw-1"] > 0 || got["west/gw-2"] == 0 {
		t.Errorf("%v; want that of west by the gateway that drains", got)
	}
	said := func() (out []string) {
		for _, v := range p.Explain(resolve(t, p, s, epoch), "", epoch) {
			if v.Name == "west" {
				for _, g := range v.Gateways {
					out = append(out, g.Sentence(epoch))
				}
			}
		}
		return out
	}
	if got, want := said(), []string{"gw-1 in, 50 % of new connections", "gw-2 out: drained"}; !slices.Equal(got, want) {
		t.Errorf("explain says %q; want %q", got, want)
	}
	l.drained["west/gw-1"] = true
	s = l.snapshot(t, 2)
	if got := counts(Tried{}); got["west/gw-1"]+got["west/gw-2"] > 0 {
		t.Errorf("%v; want all by north, whose gateways stay", got)
	}
	l.north = 0
	s = l.snapshot(t, 3)
	if got := counts(Tried{}); got["west/gw-1"] < 50 || got["west/gw-2"] < 50 {
		t.Errorf("%v; want a half by each: there is nobody else", got)
	}
	if got, want := said(), []string{"gw-1 used although out, 50 % of new connections: drained", "gw-2 used although out, 50 % of new connections: drained"}; !slices.Equal(got, want) {
		t.Errorf("explain says %q; want %q", got, want)
	}
}
