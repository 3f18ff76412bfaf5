package measure

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Value is what a metric came to.
type Value struct {
	Number float64 // NaN: there was nothing to measure; +Inf: something never happened
	Note   string  // what else to know, in words
}

var none = Value{Number: math.NaN(), Note: "nothing to measure"}

// evals measure what the closed list of package scenario names.
var evals = map[string]func(*Record, map[string]string) Value{
	"attempts":             attempts,
	"failed":               failed,
	"failed_fraction":      failedFraction,
	"aborted":              aborted,
	"refused_by_overload":  refusedByOverload,
	"answered_per_second":  answeredPerSecond,
	"cut":                  cut,
	"cut_unexplained":      cutUnexplained,
	"latency_ms":           latency,
	"to_sick":              toSick,
	"last_to_sick_ms":      lastToSickMS,
	"collateral_ejections": collateralEjections,
	"gateway_ejections":    gatewayEjections,
	"ejections":            ejections,
	"share":                share,
	"ratio":                ratio,
	"capacity_error":       capacityError,
	"victims_share":        victimsShare,
	"exclude_ms":           excludeMS,
	"known_ms":             knownMS,
	"known_healed_ms":      knownHealedMS,
	"heal_ms":              healMS,

	"control_bytes_per_second": controlBytesPerSecond,
}

// Measure evaluates e, which must have been checked against the scenario.
func (r *Record) Measure(e scenario.Expr) Value {
	eval, ok := evals[e.Name]
	if !ok {
		return none
	}
	return eval(r, e.Args)
}

func number[N int | float64](n N) Value { return Value{Number: float64(n)} }

// each calls f for the attempts that args select, by intended start.
func (r *Record) each(args map[string]string, w Window, f func(Attempt)) {
	ports := r.Layout.Scenario.Ports()
	for _, a := range r.Attempts {
		if w.Has(a.At) && (args["port"] == "" || ports[a.Port].Name == args["port"]) {
			f(a)
		}
	}
}

func attempts(r *Record, args map[string]string) Value {
	n := 0
	r.each(args, r.span(args), func(Attempt) { n++ })
	return number(n)
}

func failed(r *Record, args map[string]string) Value {
	n, answered := 0, 0
	r.each(args, r.span(args), func(a Attempt) {
		switch {
		case a.Failed():
			n++
		case a.Answered():
			answered++
		}
	})
	if n+answered == 0 {
		return Value{Number: math.NaN(), Note: "no connection was answered, and none failed"}
	}
	return number(n)
}

func aborted(r *Record, args map[string]string) Value {
	n := 0
	r.each(args, r.span(args), func(a Attempt) {
		if a.Aborted != 0 {
			n++
		}
	})
	return number(n)
}

func failedFraction(r *Record, args map[string]string) Value {
	n := attempts(r, args).Number
	if n == 0 {
		return none
	}
	return Value{Number: failed(r, args).Number / n, Note: fmt.Sprintf("of %.0f", n)}
}

func cut(r *Record, _ map[string]string) Value {
	return r.cutOfHeld(func(Attempt) bool { return true })
}

func cutUnexplained(r *Record, _ map[string]string) Value {
	return r.cutOfHeld(func(a Attempt) bool { return r.causeOf(a) == "" })
}

// cutOfHeld counts cuts. Without a connection that was held there is nothing
// that could have been cut, and without one while a fault lasted nothing that the
// fault could have.
func (r *Record) cutOfHeld(which func(Attempt) bool) Value {
	held := slices.ContainsFunc(r.Attempts, func(a Attempt) bool { return (a.Hold > 0 || a.Aborted != 0 || a.CutError != "") && a.Pod != "" })
	if !held {
		return Value{Number: math.NaN(), Note: "no connection was held: set traffic.hold.fraction"}
	}
	for _, o := range r.Outages {
		if !slices.ContainsFunc(o.spells(r.Layout.Scenario.Duration), r.heldIn) {
			return Value{Number: math.NaN(), Note: "no connection was held while fault " + o.Fault.Name + " lasted: raise traffic.hold.fraction or lengthen the fault"}
		}
	}
	return number(len(r.cuts(which)))
}

// heldIn reports whether a connection was open in w after its first answer.
func (r *Record) heldIn(w Window) bool {
	return slices.ContainsFunc(r.Attempts, func(a Attempt) bool {
		return a.Answered() && (a.Hold > 0 || a.Aborted != 0 || a.CutError != "") && w.Meets(a.Done, a.end())
	})
}

func (r *Record) cuts(which func(Attempt) bool) (out []Attempt) {
	for _, a := range r.Attempts {
		if a.CutError != "" && which(a) {
			out = append(out, a)
		}
	}
	return out
}

func latency(r *Record, args map[string]string) Value {
	var ms []float64
	r.each(args, r.span(args), func(a Attempt) {
		if a.Answered() {
			ms = append(ms, millis(a.Latency()))
		}
	})
	return quantile(args["q"], ms)
}

// quantile returns the nearest-rank quantile of v, which it sorts. Infinite
// values stand for what never happened.
func quantile(name string, v []float64) Value {
	if len(v) == 0 {
		return none
	}
	slices.Sort(v)
	q := map[string]float64{"p50": 0.5, "median": 0.5, "p90": 0.9, "p99": 0.99}[name]
	if q == 0 {
		q = 1
	}
	out := Value{Number: v[max(0, int(math.Ceil(q*float64(len(v))))-1)], Note: fmt.Sprintf("of %d", len(v))}
	if never := len(v) - slices.IndexFunc(append(v, math.Inf(1)), func(x float64) bool { return math.IsInf(x, 1) }); never > 0 {
		out.Note += fmt.Sprintf(", %d never", never)
	}
	return out
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
