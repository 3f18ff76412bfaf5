package measure

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// How far the arm may be from what was asked for before nothing can be said.
const (
	maxLate         = 250 * time.Millisecond // p99 of how late connections begin, in the run and in each phase and fault
	maxStall        = time.Second            // how late any of them begins
	maxBaselineFail = 0.01                   // share of failed connections before any fault
	maxOthers       = 0.25                   // processors that other programs use
	maxInstantError = 500 * time.Millisecond // between a fault's instant and its effect
)

// Doubt returns the reasons why the arm proves nothing, in words: those of the
// injector and those that the record itself gives. What is not known to have
// been as the scenario says is a reason.
//
// Of a machine that others used too it says how much: it may be why, and whoever reads
// that a fault was late cannot see it otherwise.
func (r *Record) Doubt() []string {
	out := r.doubt()
	if len(out) > 0 && r.Others > maxOthers {
		out = append(out, fmt.Sprintf(otherPrograms+" %.1f processors meanwhile, which may be why: end them (top shows them) and run it again", r.Others))
	}
	return out
}

// Reasons of doubt that a busy machine causes have one of these parts.
const (
	quieterMachine = "use a quieter machine"
	otherPrograms  = "other programs used"
)

// Disturbed reports whether the arm is in doubt because the machine was too busy, so that running
// it again may help.
func (a ArmResult) Disturbed() bool {
	return slices.ContainsFunc(a.Inconclusive, func(why string) bool {
		return strings.Contains(why, quieterMachine) || strings.Contains(why, otherPrograms)
	})
}

func (r *Record) doubt() []string {
	out := slices.Clone(r.Doubts)
	if len(r.Attempts) == 0 {
		return append(out, "no client opened a connection")
	}
	out = append(out, r.doubtGenerator()...)
	out = append(out, r.doubtSurge()...)
	out = append(out, r.doubtBaseline()...)
	out = append(out, r.doubtLogs()...)
	for i, f := range r.Layout.Scenario.Faults {
		if i >= len(r.Outages) || r.Outages[i].Fault.Name != f.Name {
			out = append(out, fmt.Sprintf("fault %s was never injected", f.Name))
			continue
		}
		out = append(out, r.doubtOutage(r.Outages[i])...)
	}
	return out
}

// doubtGenerator compares what clients did with the schedule.
func (r *Record) doubtGenerator() (out []string) {
	s := r.Layout.Scenario
	if planned := scenario.Planned(s); len(r.Attempts) != planned {
		out = append(out, fmt.Sprintf("clients made %d connections of the %d planned: the generator stopped, or the record is not whole", len(r.Attempts), planned))
	}
	open := 0
	for _, a := range r.Attempts {
		if !a.Over() {
			open++
		}
	}
	if open > 0 {
		out = append(out, fmt.Sprintf("nothing is known of %d of %d connections: the generator stopped, or the record is not whole", open, len(r.Attempts)))
	}
	if !slices.ContainsFunc(r.Attempts, Attempt.Answered) {
		out = append(out, "no client was ever answered: nothing is known of what clients get; lower traffic.abort, or look at the logs with --keep")
	}
	return append(out, r.doubtLateness()...)
}

// doubtLateness asks whether connections began in time: in the run, and in each
// phase and fault, of which a long run would not show one without traffic. The
// surge has bounds of its own.
func (r *Record) doubtLateness() (out []string) {
	const advice = "lower traffic.rate or " + quieterMachine + ", and run it again"
	spans := []Window{r.window("run")}
	for _, o := range r.Outages {
		spans = append(spans, o.ill(r.Layout.Scenario.Duration))
	}
	for _, w := range append(spans, r.Phases()...) {
		if late := quantile("p99", r.late(false, w)).Number; late > millis(maxLate) {
			return []string{fmt.Sprintf("the generator fell behind: 1 %% of the connections in %s began more than %.0f ms late (at most %v): %s", w.Name, late, maxLate, advice)}
		}
	}
	if late := quantile("max", r.late(false, spans[0])).Number; late > millis(maxStall) {
		return []string{fmt.Sprintf("the generator stood still: a connection began %.0f ms late (at most %v): %s", late, maxStall, advice)}
	}
	return nil
}

func (r *Record) doubtBaseline() (out []string) {
	for _, w := range r.Phases() {
		if w.Name != "baseline" {
			continue
		}
		phase := map[string]string{"phase": w.Name}
		if attempts(r, phase).Number == 0 {
			out = append(out, "no client opened a connection before the first fault or surge: there is no baseline; raise traffic.rate")
		} else if f := failedFraction(r, phase).Number; math.IsNaN(f) {
			out = append(out, "no client was answered before the first fault or surge: there is no baseline; lower traffic.abort")
		} else if f > maxBaselineFail {
			out = append(out, fmt.Sprintf("%.1f %% of the connections failed before any fault or surge: the baseline is broken", 100*f))
		}
	}
	return out
}

func (r *Record) doubtOutage(o Outage) (out []string) {
	switch {
	case o.Effect == 0:
		return []string{fmt.Sprintf("fault %s did not take effect: %s", o.Fault.Name, o.Proof)}
	case o.Effect-o.Fault.At > maxInstantError && o.Fault.Kind != scenario.Hang:
		out = append(out, fmt.Sprintf("fault %s took effect %v late (at most %v): "+quieterMachine+", or fewer pods, and run it again", o.Fault.Name, (o.Effect-o.Fault.At).Round(time.Millisecond), maxInstantError))
	case o.Fault.Until != 0 && o.Healed == 0:
		out = append(out, fmt.Sprintf("fault %s did not heal", o.Fault.Name))
	}
	if n := r.answeredBySick(o); n > 0 {
		out = append(out, fmt.Sprintf("fault %s did not last: its victims answered %d connections that began while it was to", o.Fault.Name, n))
	}
	if r.crossings(o) == 0 {
		out = append(out, fmt.Sprintf("fault %s: no client connection crossed it: %s", o.Fault.Name, r.notCrossed(o)))
	}
	return out
}

// answeredBySick counts connections that began after the fault had taken effect
// and that its victims answered on the port that they had lost, before healing
// began: there are none as long as the fault lasts.
func (r *Record) answeredBySick(o Outage) (n int) {
	if o.Effect == 0 || o.Fault.Kind == scenario.Slow {
		return 0 // a slow pod answers
	}
	ports := r.Layout.Scenario.Ports()
	for _, ill := range o.spells(r.Layout.Scenario.Duration) {
		ill.From = max(ill.From, o.Effect)
		for _, a := range r.Attempts {
			if a.Answered() && ill.Has(a.Started) && a.Done < ill.To && slices.Contains(o.Victims.Pods, a.Pod) && o.hits(ports[a.Port]) {
				n++
			}
		}
	}
	return n
}
