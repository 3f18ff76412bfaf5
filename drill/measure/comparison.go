package measure

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// How far conditions may differ before latencies of arms say nothing about
// what the arms are.
const (
	maxLateShown     = 20 * time.Millisecond // p99 of how late connections begin, beside latencies of milliseconds
	maxBaselineRatio = 2                     // between the arms' latencies before any fault
	minForP99        = 100                   // answers below which a p99 is not compared
)

// Comparison is whether the latencies of a result's arms can be compared with
// each other and with those of other runs.
type Comparison struct {
	Comparable bool     `json:"comparable"`
	Why        []string `json:"why,omitempty"` // why not
}

// compareLatencies asks whether connections began in time, and whether the
// arms started from the same latencies.
func (r *Result) compareLatencies() Comparison {
	c := Comparison{}
	for _, a := range r.Arms {
		if why := Lateness(a.Generator.LateP99MS); why != "" {
			c.Why = append(c.Why, "arm "+a.Name+": "+why)
		}
		if g := a.Generator.Surge; g != nil {
			if why := Lateness(g.LateP99MS); why != "" {
				c.Why = append(c.Why, "arm "+a.Name+": in the surge "+why)
			}
		}
	}
	for _, why := range []string{
		r.unequalBaselines("p50", func(p Phase) *float64 { return p.LatencyMS.P50 }),
		r.unequalBaselines("p99", func(p Phase) *float64 {
			if p.Attempts-p.Failed-p.Aborted < minForP99 {
				return nil
			}
			return p.LatencyMS.P99
		}),
	} {
		if why != "" {
			c.Why = append(c.Why, why)
		}
	}
	c.Comparable = len(c.Why) == 0
	return c
}

// Lateness says why latencies are not to be compared with arrivals so late, or
// returns "". Latency counts from the intended begin, so lateness of the
// generator is in it.
func Lateness(lateP99MS float64) string {
	if lateP99MS <= millis(maxLateShown) {
		return ""
	}
	return fmt.Sprintf("1 %% of the connections began more than %s ms late (at most %v)", Compact(lateP99MS), maxLateShown)
}

func (r *Result) unequalBaselines(name string, of func(Phase) *float64) string {
	low, high, lowArm, highArm := math.Inf(1), 0.0, "", ""
	for _, a := range r.Arms {
		for _, p := range a.Phases {
			v := of(p)
			if p.Name != "baseline" || v == nil {
				continue
			}
			if *v < low {
				low, lowArm = *v, a.Name
			}
			if *v > high {
				high, highArm = *v, a.Name
			}
		}
	}
	if high <= maxBaselineRatio*low {
		return ""
	}
	return fmt.Sprintf("before any fault the %s of the arms was %s ms (%s) against %s ms (%s), more than %d times as long", name, Compact(high), highArm, Compact(low), lowArm, maxBaselineRatio)
}

// doubtLatency says why an assertion on latency proves nothing, or returns "".
// Lateness of the generator makes latencies longer: it can break an upper bound
// and hold a lower one, but not the other way round.
func (r *Record) doubtLatency(args map[string]string, b scenario.Bound, held bool) string {
	why, w := Lateness(quantile("p99", r.late(false, r.window("run"))).Number), r.span(args)
	if g := r.Layout.Scenario.Traffic.Surge; why == "" && g.Given() && w.Meets(g.At, g.Until) {
		why = Lateness(quantile("p99", r.late(true, r.window("run"))).Number)
	}
	upper := b.Op == "<" || b.Op == "<="
	lower := b.Op == ">" || b.Op == ">="
	if why == "" || upper && held || lower && !held {
		return ""
	}
	return "latencies are not comparable: " + why
}

// Compact prints three significant digits, and never an exponent for what is
// large.
func Compact(v float64) string {
	if v == math.Trunc(v) || math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
