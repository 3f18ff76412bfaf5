package drill

import (
	"fmt"
	"slices"
	"time"
)

// How far the arm may be from what was asked for before nothing can be said.
const (
	maxLate         = 250 * time.Millisecond // p99 of how late connections begin
	maxBaselineFail = 0.01                   // share of failed connections before any fault
	maxInstantError = 500 * time.Millisecond // between a fault's instant and its effect
)

// Doubt returns the reasons why the arm proves nothing, in words: those of the
// injector and those that the record itself gives.
func (r *Record) Doubt() []string {
	out := slices.Clone(r.Doubts)
	if len(r.Attempts) == 0 {
		return append(out, "no client opened a connection")
	}
	if late := quantile("p99", r.late()).Number; late > millis(maxLate) {
		out = append(out, fmt.Sprintf("the generator fell behind: 1 %% of the connections began more than %.0f ms late (at most %v): lower traffic.rate or use a quieter machine", late, maxLate))
	}
	for _, w := range r.Phases() {
		if w.Name != "baseline" {
			continue
		}
		if f := failedFraction(r, map[string]string{"phase": w.Name}); f.Number > maxBaselineFail {
			out = append(out, fmt.Sprintf("%.1f %% of the connections failed before any fault: the baseline is broken", 100*f.Number))
		}
	}
	for _, o := range r.Outages {
		out = append(out, r.doubtOutage(o)...)
	}
	return out
}

func (r *Record) doubtOutage(o Outage) (out []string) {
	switch {
	case o.Effect == 0:
		return []string{fmt.Sprintf("fault %s did not take effect: %s", o.Fault.Name, o.Proof)}
	case o.Effect-o.Fault.At > maxInstantError && o.Fault.Kind != Hang:
		out = append(out, fmt.Sprintf("fault %s took effect %v late", o.Fault.Name, (o.Effect-o.Fault.At).Round(time.Millisecond)))
	case o.Fault.Until != 0 && o.Healed == 0:
		out = append(out, fmt.Sprintf("fault %s did not heal", o.Fault.Name))
	}
	if o.Fault.Kind == Refuse && !r.met(o) {
		out = append(out, fmt.Sprintf("fault %s: no connection ever met it: raise traffic.rate or lengthen the fault", o.Fault.Name))
	}
	return out
}

// met reports whether a client's connection was refused by a victim: its node
// proxy says so as the application's witness, or, where that is switched off,
// in the connection's own line.
func (r *Record) met(o Outage) bool {
	return slices.ContainsFunc(r.Events, func(e Event) bool {
		refused := e.Kind == AppRefused && !e.Probe || e.Kind == Connection && e.Direction == "inbound" && e.Result != "ok"
		p, ok := r.Layout.pod(e)
		return refused && ok && o.during(e.At, 0) && slices.Contains(o.Victims.Pods, p.Name)
	})
}
