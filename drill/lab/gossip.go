package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// gossipRelay is a relay with its place in the layout.
type gossipRelay struct {
	scenario.Relay
	*relay
	before, atCut int64 // bytes passed when the cut began, and once it was done
}

// startRelays opens every relay of the layout.
func (a *armRun) startRelays(ctx context.Context) error {
	for _, r := range a.layout.Relays {
		n, err := newRelay(ctx, a.network, r.Listen, r.Forward)
		if err != nil {
			return err
		}
		a.relays = append(a.relays, &gossipRelay{Relay: r, relay: n})
	}
	return nil
}

// relaysOf returns the relays that the fault cuts: all, or those with one end
// on a network that it names.
func (a *armRun) relaysOf(f scenario.Fault) (out []*gossipRelay) {
	for _, r := range a.relays {
		in := func(n string) bool { return slices.Contains(f.Target.Networks, n) }
		if len(f.Target.Networks) == 0 || in(r.From) || in(r.Network) {
			out = append(out, r)
		}
	}
	return out
}

// cutRelays cuts the fault's relays.
func (j *injection) cutRelays(ctx context.Context) {
	j.cut = j.relaysOf(j.o.Fault)
	for _, r := range j.cut {
		r.before = r.passed.Load()
		r.setCut(true)
	}
	sleep(ctx, 20*time.Millisecond) // what was being written when the cut came
	for _, r := range j.cut {
		r.atCut = r.passed.Load()
	}
}

// proveCut reports whether the relays had carried gossip: cutting an unused
// path proves nothing.
func (j *injection) proveCut() (string, bool) {
	carried := int64(0)
	for _, r := range j.cut {
		carried += r.before
	}
	if carried == 0 {
		return fmt.Sprintf("the %d relays between networks had carried no gossip: federation is off in this arm, or does not run through them", len(j.cut)), false
	}
	return fmt.Sprintf("%d relays between networks cut, after %d bytes of gossip", len(j.cut), carried), true
}

// lastLook checks a cut at its end: nothing may have passed, and somebody must
// have tried.
func (j *injection) lastLook() {
	if j.o.Fault.Kind != scenario.FederationCut || j.o.Effect == 0 {
		return
	}
	var passed, swallowed, met int64
	for _, r := range j.cut {
		passed += r.passed.Load() - r.atCut
		swallowed += r.swallowed.Load()
		met += r.met.Load()
	}
	j.o.Proof += fmt.Sprintf("; then %d bytes passed, %d were swallowed, %d new connections met the cut", passed, swallowed, met)
	if passed > 0 || swallowed+met == 0 {
		j.o.Effect = 0
	}
}
