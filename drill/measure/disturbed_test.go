package measure

import (
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Only doubts that a busy machine causes are worth a second run.
func TestArmIsDisturbedByABusyMachine(t *testing.T) {
	for name, x := range map[string]struct {
		spoil func(r *Record)
		want  bool
	}{
		"as planned":       {func(*Record) {}, false},
		"late generator":   {func(r *Record) { r.Attempts[0].Started += maxStall + ms(1) }, true},
		"late fault":       {func(r *Record) { r.Outages[0].Effect = ms(6000) }, true},
		"no fault":         {func(r *Record) { r.Outages[0].Effect, r.Outages[0].Proof = 0, "west-2 answers" }, false},
		"others, no fault": {func(r *Record) { r.Outages[0].Effect, r.Others = 0, maxOthers+1 }, true},
		"others alone":     {func(r *Record) { r.Others = maxOthers + 1 }, false},
	} {
		s := mustParse(t, twoNetworks)
		r := whole(t, s, s.Arms[0])
		x.spoil(r)
		if a := r.Result(); a.Disturbed() != x.want {
			t.Errorf("%s: disturbed is %t; want %t: %q", name, a.Disturbed(), x.want, a.Inconclusive)
		}
	}
}

// A killed process reports nothing from its kill on, whenever it began and whenever a later one
// of its name logs the end.
func TestBeliefsEndWhenTheirProcessIsKilled(t *testing.T) {
	for _, kind := range []scenario.Kind{scenario.GatewayKill, scenario.NodeProxyKill, scenario.Refuse} {
		for _, from := range []float64{1, 8.9, 9.1, 12} {
			for _, to := range []float64{0, 2, 9.5, 25} {
				if to != 0 && to < from {
					continue
				}
				for _, process := range []string{"gw-1", "gw-2"} {
					b := Belief{Process: process, From: from}
					if to != 0 {
						b.To = &to
					}
					r := &Record{Outages: []Outage{{Fault: scenario.Fault{Kind: kind}, Victims: scenario.Victims{Process: "gw-1"}, Effect: ms(9000)}}}
					list := []Belief{b}
					r.endWithProcess(list)
					want := to
					if kind != scenario.Refuse && process == "gw-1" && from < 9 && (to == 0 || to > 9) {
						want = 9
					}
					got := 0.0
					if list[0].To != nil {
						got = *list[0].To
					}
					if got != want {
						t.Errorf("%s kills gw-1 at 9 s, %s believes from %v to %v: it ends at %v; want %v", kind, process, from, to, got, want)
					}
				}
			}
		}
	}
}
