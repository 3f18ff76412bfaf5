package measure

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// News is how word of one sick pod:port travelled. Milliseconds count from the
// first client connection that it refused, or from when its witness has ejected it if
// that was sooner; null is never. For a pod that hangs they count from the fault's effect:
// the first connection fails as late as the pod is noticed.
type News struct {
	Fault         string              `json:"fault"`
	Pod           string              `json:"pod"`
	Port          string              `json:"port"`
	FirstRefused  float64             `json:"first_refused"`    // seconds; from when milliseconds count
	ExcludedMS    map[string]*float64 `json:"excluded_ms"`      // by gateway of the pod's network
	KnownMS       map[string]*float64 `json:"known_ms"`         // by client node proxy of other networks
	AnswersAgain  *float64            `json:"answers_again_ms"` // from its healing
	excluded, all []float64
}

// news follows every sick pod:port at which a client's connection (not a probe)
// was refused, or that its witness has ejected before one could be.
func (r *Record) news(fault string) (out []News) {
	for _, o := range r.Outages {
		if fault != "" && o.Fault.Name != fault {
			continue
		}
		for _, name := range o.Victims.Pods {
			p, _ := r.Layout.Pod(name)
			for i, port := range r.Layout.Scenario.Ports() {
				if !slices.Contains(o.Victims.Ports, port.Target) {
					continue
				}
				if n, ok := r.newsOf(o, p, port); ok {
					if o.Healed != 0 {
						n.AnswersAgain = finite(r.answeredAfter(o.Heal, name, i))
					}
					out = append(out, n)
				}
			}
		}
	}
	return out
}

func (r *Record) newsOf(o Outage, p scenario.Pod, port scenario.Port) (News, bool) {
	first := slices.IndexFunc(r.Events, func(e Event) bool {
		seen := e.Kind == OutlierChanged && e.Edge == "ejected" && e.Process == p.Node && e.Scope == "endpoint" && e.Port == port.Target
		failed := e.AppFailed() && e.Target == port.Target && (!hangs(o.Fault.Kind) || e.Started >= o.Begin)
		return (seen || failed) && o.during(e.At, 0) && r.about(e, p)
	})
	if first < 0 {
		return News{}, false
	}
	at := r.Events[first].At
	if hangs(o.Fault.Kind) {
		at = cmp.Or(o.Effect, o.Begin)
	}
	n := News{Fault: o.Fault.Name, Pod: p.Name, Port: port.Name, FirstRefused: at.Seconds(), ExcludedMS: map[string]*float64{}, KnownMS: map[string]*float64{}}
	for _, g := range r.Layout.GatewaysOf(p.Network) {
		ms := r.after(at, o, func(e Event) bool {
			return e.Kind == OutlierChanged && e.Edge == "ejected" && e.Process == g &&
				(e.Scope == "endpoint" && e.Port == port.Target || e.Scope == "hop") && r.about(e, p)
		})
		n.ExcludedMS[g] = finite(ms)
		n.excluded = append(n.excluded, ms)
	}
	for _, c := range r.Layout.Clients {
		if c.Network == p.Network {
			continue
		}
		ms := r.after(at, o, func(e Event) bool {
			return e.Kind == Known && e.Process == c.Node && e.Network == p.Network && e.Port == port.Port &&
				slices.Contains(e.Exceptions, p.Endpoint)
		})
		n.KnownMS[c.Node] = finite(ms)
		n.all = append(n.all, ms)
	}
	return n, true
}

func (r *Record) about(e Event, p scenario.Pod) bool {
	q, ok := podOf(r.Layout, e)
	return ok && q.Name == p.Name
}

// after returns the milliseconds from t to the first event that matches before
// the outage was over; +Inf if there is none. Two processes' clocks are one,
// but their log lines may be a few milliseconds out of order.
func (r *Record) after(t time.Duration, o Outage, match func(Event) bool) float64 {
	const slack = 5 * time.Millisecond
	for _, e := range r.Events {
		if e.At >= t-slack && e.At < o.over(o.Healed) && match(e) {
			return max(0, millis(e.At-t))
		}
	}
	return math.Inf(1)
}

// excludeMS measures from the instant that [News] counts from, for each sick pod:port, to
// the moment when each gateway of its network left it out.
func excludeMS(r *Record, args map[string]string) Value {
	var ms []float64
	for _, n := range r.news(args["fault"]) {
		ms = append(ms, n.excluded...)
	}
	return quantile(args["q"], ms)
}

// knownMS is excludeMS for the node proxies of clients on other networks.
func knownMS(r *Record, args map[string]string) Value {
	var ms []float64
	for _, n := range r.news(args["fault"]) {
		ms = append(ms, n.all...)
	}
	return quantile(args["q"], ms)
}

// knownHealedMS measures from a pod:port's healing to the moment when each client node
// proxy on another network that knew it to be sick knows that it is well.
func knownHealedMS(r *Record, args map[string]string) Value {
	var ms []float64
	for _, o := range r.Outages {
		if args["fault"] != "" && o.Fault.Name != args["fault"] || o.Healed == 0 {
			continue
		}
		for _, name := range o.Victims.Pods {
			p, _ := r.Layout.Pod(name)
			for _, port := range r.Layout.Scenario.Ports() {
				if slices.Contains(o.Victims.Ports, port.Target) {
					ms = append(ms, r.healKnown(o, p, port)...)
				}
			}
		}
	}
	return quantile(args["q"], ms)
}

func (r *Record) healKnown(o Outage, p scenario.Pod, port scenario.Port) (ms []float64) {
	for _, c := range r.Layout.Clients {
		sick, well := false, math.Inf(1)
		for _, e := range r.Events {
			if e.Kind != Known || e.Process != c.Node || e.Network != p.Network || e.Port != port.Port {
				continue
			}
			excepted := slices.Contains(e.Exceptions, p.Endpoint)
			if e.At < o.Heal {
				sick = excepted
			} else if !excepted {
				well = min(well, millis(e.At-o.Heal))
			}
		}
		if sick && c.Network != p.Network {
			ms = append(ms, well)
		}
	}
	return ms
}

// healMS measures from a pod:port's healing to its next answer.
func healMS(r *Record, args map[string]string) Value {
	var ms []float64
	for _, o := range r.Outages {
		if args["fault"] != "" && o.Fault.Name != args["fault"] || o.Healed == 0 {
			continue
		}
		for _, pod := range o.Victims.Pods {
			for i, port := range r.Layout.Scenario.Ports() {
				if slices.Contains(o.Victims.Ports, port.Target) {
					ms = append(ms, r.answeredAfter(o.Heal, pod, i))
				}
			}
		}
	}
	return quantile(args["q"], ms)
}

func (r *Record) answeredAfter(t time.Duration, pod string, port int) float64 {
	best := math.Inf(1)
	for _, a := range r.Attempts {
		if a.Pod == pod && a.Port == port && a.Done >= t {
			best = min(best, millis(a.Done-t))
		}
	}
	return best
}
