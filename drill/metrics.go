package drill

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Metric is one entry of the closed list that assertions may use.
type Metric struct {
	Name  string
	Doc   string
	Takes []string // selectors
	Needs []string // those of them that must be given
	eval  func(*Record, map[string]string) Value
}

// Value is what a metric came to.
type Value struct {
	Number float64 // NaN: there was nothing to measure; +Inf: something never happened
	Note   string  // what else to know, in words
}

var none = Value{Number: math.NaN(), Note: "nothing to measure"}

// metrics is the closed list; examples/drills/README.md shows it.
var metrics = map[string]Metric{}

func init() {
	where := []string{"phase", "port", "after"}
	shares := []string{"network", "to", "port", "phase"}
	for _, m := range []Metric{
		{Name: "attempts", Doc: "new connections that clients opened", Takes: where, eval: attempts},
		{Name: "failed", Doc: "new connections whose first exchange did not succeed", Takes: where, eval: failed},
		{Name: "failed_fraction", Doc: "failed, as a share of attempts", Takes: where, eval: failedFraction},
		{Name: "aborted", Doc: "connections that clients broke off on purpose (`traffic.abort`); they are no failures", Takes: where, eval: aborted},
		{Name: "refused_by_overload", Doc: "connections of the surge that the client's node proxy refused because of overload (`traffic.surge`), within 2 s; they are no failures, those that time out are", Takes: where, eval: refusedByOverload},
		{Name: "answered_per_second", Doc: "connections that succeeded, per second of the phase", Takes: where, eval: answeredPerSecond},
		{Name: "cut", Doc: "held connections, already answered, that broke", eval: cut},
		{Name: "cut_unexplained", Doc: "those of them that no fault's victim explains", eval: cutUnexplained},
		{Name: "latency_ms", Doc: "milliseconds from intended start to first answer, of connections that succeeded", Takes: []string{"q", "phase", "port", "after"}, eval: latency},
		{Name: "to_sick", Doc: "client connections that ended at a sick pod:port later than `after` (1s) into its fault", Takes: []string{"after", "fault"}, eval: toSick},
		{Name: "collateral_ejections", Doc: "how often a healthy endpoint:port was left out because of another one's fault", eval: collateralEjections},
		{Name: "gateway_ejections", Doc: "how often a gateway that was alive was left out", eval: gatewayEjections},
		{Name: "ejections", Doc: "how often a victim of the fault was left out, by any process, while it lasted", Takes: []string{"fault"}, Needs: []string{"fault"}, eval: ejections},
		{Name: "share", Doc: "answers from the network, as a share of all", Takes: []string{"network", "port", "phase"}, Needs: []string{"network"}, eval: share},
		{Name: "ratio", Doc: "answers from `network` for each one from `to`", Takes: shares, Needs: []string{"network", "to"}, eval: ratio},
		{Name: "capacity_error", Doc: "how far ratio is from that of the healthy capacities, relative: 0.1 is 10 %", Takes: shares, Needs: []string{"network", "to"}, eval: capacityError},
		{Name: "victims_share", Doc: "answers from the fault's pods on the port, relative to their share of their network's pods: 1 is their full share", Takes: []string{"fault", "port", "phase"}, Needs: []string{"fault", "port"}, eval: victimsShare},
		{Name: "exclude_ms", Doc: "milliseconds from the first refused client connection to each gateway of the pod's network leaving the pod:port out", Takes: []string{"q", "fault"}, eval: excludeMS},
		{Name: "known_ms", Doc: "milliseconds from the first refused client connection to each client node proxy on another network knowing", Takes: []string{"q", "fault"}, eval: knownMS},
		{Name: "heal_ms", Doc: "milliseconds from a pod:port's healing to its next answer to a client", Takes: []string{"q", "fault"}, eval: healMS},
	} {
		metrics[m.Name] = m
	}
}

// MetricNames returns the closed list, sorted.
func MetricNames() []string { return slices.Sorted(maps.Keys(metrics)) }

// Metrics returns the closed list with its documentation, sorted by name.
func Metrics() []Metric {
	var out []Metric
	for _, n := range MetricNames() {
		out = append(out, metrics[n])
	}
	return out
}

// Measure evaluates e, which must have been checked against the scenario.
func (r *Record) Measure(e Expr) Value {
	m, ok := metrics[e.Name]
	if !ok {
		return none
	}
	return m.eval(r, e.Args)
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

// quantileNames are what the selector q may be; max when it is left out.
var quantileNames = []string{"p50", "median", "p90", "p99", "max"}

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
