package drill

import (
	"math"
	"slices"
	"time"
)

// toSick counts client connections at sick pod:ports: those that the pod's own
// node proxy saw arrive, and, where that process itself is the fault, those
// that a gateway could not deliver. Probes are not connections and leave no
// such line. A connection that a sick pod answered counts too.
func toSick(r *Record, args map[string]string) Value {
	after := time.Second
	if v := args["after"]; v != "" {
		after, _ = time.ParseDuration(v)
	}
	n := 0
	for _, o := range r.Outages {
		if len(o.Victims.Pods) == 0 || args["fault"] != "" && o.Fault.Name != args["fault"] || o.Effect == 0 {
			continue
		}
		span := Window{From: o.Effect + after, To: o.over(o.Heal)}
		n += r.arrivedAt(o, span)
	}
	return number(n)
}

func (r *Record) arrivedAt(o Outage, span Window) (n int) {
	ports := r.Layout.Scenario.Ports()
	for _, e := range r.Events {
		p, ok := r.Layout.pod(e)
		if e.Kind != Connection || !ok || !span.Has(e.Started) || !slices.Contains(o.Victims.Pods, p.Name) {
			continue
		}
		i := slices.IndexFunc(ports, func(q Port) bool { return q.Port == e.Port || q.Target == e.Port })
		if i < 0 || !slices.Contains(o.Victims.Ports, ports[i].Target) {
			continue
		}
		// A dead node proxy logs nothing: then the gateway's own line tells.
		if e.Direction == "inbound" || o.Fault.Kind == NodeProxyKill && e.Direction == "forward" && e.Result != "ok" {
			n++
		}
	}
	if o.Fault.Kind == NodeProxyKill {
		for _, a := range r.Attempts { // it cannot have answered; if it did, say so
			if span.Has(a.Started) && slices.Contains(o.Victims.Pods, a.Pod) {
				n++
			}
		}
	}
	return n
}

// collateralEjections counts, over all processes, healthy endpoint:ports that
// an ejection left out. See the scope of each in [Event].
func collateralEjections(r *Record, _ map[string]string) Value {
	n := 0
	for _, e := range r.Events {
		if e.Kind == OutlierChanged && e.Edge == "ejected" && e.At >= 0 {
			n += r.collateral(e)
		}
	}
	return number(n)
}

// collateral is how many healthy endpoint:ports the ejection e left out.
func (r *Record) collateral(e Event) (n int) {
	switch e.Scope {
	case "endpoint":
		if p, ok := r.Layout.pod(e); ok && !r.sick(p, e.Port, e.At, time.Second) {
			return 1
		}
	case "hop": // the pod's address: every port of it
		p, ok := r.Layout.pod(e)
		if !ok || r.processDead(p, e.At) {
			return 0
		}
		for _, port := range r.Layout.Scenario.Ports() {
			if !r.sick(p, port.Target, e.At, time.Second) {
				n++
			}
		}
	case "network_service":
		for _, port := range r.Layout.Scenario.Ports() {
			if port.Port != e.Port && e.Port != 0 {
				continue
			}
			for _, p := range r.Layout.Pods {
				if p.Network == e.Network && !r.sick(p, port.Target, e.At, time.Second) {
					n++
				}
			}
		}
	}
	return n
}

// processDead reports whether p's node proxy was dead at t.
func (r *Record) processDead(p Pod, t time.Duration) bool { return r.dead(p.Node, t, time.Second) }

func gatewayEjections(r *Record, _ map[string]string) Value {
	n := 0
	for _, e := range r.Events {
		if e.Kind == OutlierChanged && e.Edge == "ejected" && e.Scope == "gateway" && e.At >= 0 && !r.dead(e.Gateway, e.At, time.Second) {
			n++
		}
	}
	return number(n)
}

// ejections counts how often a process left out one of the fault's pods, by
// endpoint or by hop, while the fault lasted.
func ejections(r *Record, args map[string]string) Value {
	n := 0
	for _, o := range r.Outages {
		if o.Fault.Name != args["fault"] {
			continue
		}
		for _, e := range r.Events {
			if e.Kind != OutlierChanged || e.Edge != "ejected" || e.Scope != "endpoint" && e.Scope != "hop" || !o.during(e.At, time.Second) {
				continue
			}
			if p, ok := r.Layout.pod(e); ok && slices.Contains(o.Victims.Pods, p.Name) {
				n++
			}
		}
	}
	return number(n)
}

// excludeMS measures from each sick pod:port's first refused client connection
// to the moment when each gateway of its network left it out.
func excludeMS(r *Record, args map[string]string) Value {
	var ms []float64
	r.refusals(args["fault"], func(o Outage, p Pod, port Port, first time.Duration) {
		for _, g := range r.Layout.GatewaysOf(p.Network) {
			ms = append(ms, r.after(first, o, func(e Event) bool {
				return e.Kind == OutlierChanged && e.Edge == "ejected" && e.Process == g &&
					(e.Scope == "endpoint" && e.Port == port.Target || e.Scope == "hop") && r.about(e, p)
			}))
		}
	})
	return quantile(args["q"], ms)
}

// knownMS is excludeMS for the node proxies of clients on other networks.
func knownMS(r *Record, args map[string]string) Value {
	var ms []float64
	r.refusals(args["fault"], func(o Outage, p Pod, port Port, first time.Duration) {
		for _, c := range r.Layout.Clients {
			if c.Network == p.Network {
				continue
			}
			ms = append(ms, r.after(first, o, func(e Event) bool {
				return e.Kind == Known && e.Process == c.Node && e.Network == p.Network && e.Port == port.Port &&
					slices.Contains(e.Exceptions, p.Endpoint)
			}))
		}
	})
	return quantile(args["q"], ms)
}

// refusals calls f for each sick pod:port at which a client's connection (not
// a probe) was refused, with the instant of the first.
func (r *Record) refusals(fault string, f func(o Outage, p Pod, port Port, first time.Duration)) {
	for _, o := range r.Outages {
		if fault != "" && o.Fault.Name != fault {
			continue
		}
		for _, name := range o.Victims.Pods {
			p, _ := r.Layout.Pod(name)
			for _, port := range r.Layout.Scenario.Ports() {
				if !slices.Contains(o.Victims.Ports, port.Target) {
					continue
				}
				i := slices.IndexFunc(r.Events, func(e Event) bool {
					return e.Kind == AppRefused && !e.Probe && e.Port == port.Target && o.during(e.At, 0) && r.about(e, p)
				})
				if i >= 0 {
					f(o, p, port, r.Events[i].At)
				}
			}
		}
	}
}

func (r *Record) about(e Event, p Pod) bool {
	q, ok := r.Layout.pod(e)
	return ok && q.Name == p.Name
}

// after returns the milliseconds from t to the first event that matches before
// the outage was over; +Inf if there is none. Two processes' clocks are one,
// but their log lines may be a few microseconds out of order.
func (r *Record) after(t time.Duration, o Outage, match func(Event) bool) float64 {
	const slack = 5 * time.Millisecond
	for _, e := range r.Events {
		if e.At >= t-slack && e.At < o.over(o.Healed) && match(e) {
			return max(0, millis(e.At-t))
		}
	}
	return math.Inf(1)
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
