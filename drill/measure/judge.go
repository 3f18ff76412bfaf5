package measure

import (
	"fmt"
	"slices"
)

// Judge fills Verdict, Reasons and Latencies from the arms and assertions. A
// result is held only if everything that the scenario asks for is there: each
// of its arms, each fault in it, each assertion, at least one of them.
func (r *Result) Judge() {
	r.Verdict, r.Reasons, r.Latencies = Held, r.missing(), r.compareLatencies()
	for _, o := range r.Assertions {
		if !o.Held {
			r.Verdict = Broken
		}
		if o.Doubt != "" {
			r.Reasons = append(r.Reasons, "arm "+o.Arm+": "+o.Name+": "+o.Doubt)
		}
	}
	for _, a := range r.Arms {
		for _, why := range a.Inconclusive {
			r.Reasons = append(r.Reasons, "arm "+a.Name+": "+why)
		}
	}
	if len(r.Reasons) > 0 {
		r.Verdict = Inconclusive
	}
}

// missing compares what was recorded with what was to be run.
func (r *Result) missing() (out []string) {
	if r.AsRun == nil {
		return []string{"the result does not say what was run"}
	}
	if len(r.AsRun.Assertions) == 0 {
		out = append(out, "the scenario asserts nothing: give it assertions")
	}
	if len(r.AsRun.Arms) == 0 {
		out = append(out, "the scenario has no arm: nothing was run")
	}
	for _, arm := range r.AsRun.Arms {
		i := slices.IndexFunc(r.Arms, func(a ArmResult) bool { return a.Name == arm.Name })
		if i < 0 {
			out = append(out, "arm "+arm.Name+" did not run to its end")
			continue
		}
		for _, f := range r.AsRun.Faults {
			if !slices.ContainsFunc(r.Arms[i].Faults, func(g FaultResult) bool { return g.Name == f.Name }) {
				out = append(out, fmt.Sprintf("arm %s: nothing is recorded of fault %s", arm.Name, f.Name))
			}
		}
		out = append(out, r.unmeasured(arm.Name)...)
	}
	return out
}

// unmeasured names the arm's assertions without an observation.
func (r *Result) unmeasured(arm string) (out []string) {
	for _, a := range r.AsRun.Assertions {
		if a.Arm != "" && a.Arm != arm {
			continue
		}
		if !slices.ContainsFunc(r.Assertions, func(o Observation) bool {
			return o.Arm == arm && o.Name == a.Name && o.Metric == a.Metric
		}) {
			out = append(out, fmt.Sprintf("arm %s: %s was not measured", arm, a.Name))
		}
	}
	return out
}
