package measure

import (
	"math"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
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
	n, opened := 0, 0
	r.eachSpell(args, func(o Outage, s Window) {
		span := Window{From: s.From + after, To: s.To}
		r.arrivals(o, span, func(time.Duration) { n++ })
		opened += r.openedIn(o, span)
	})
	if n == 0 && opened == 0 {
		return Value{Number: math.NaN(), Note: "clients opened no connection in that time that a sick pod could have got"}
	}
	return number(n)
}

// eachSpell calls f for each time that pods were sick.
func (r *Record) eachSpell(args map[string]string, f func(Outage, Window)) {
	for _, o := range r.Outages {
		if len(o.Victims.Pods) == 0 || args["fault"] != "" && o.Fault.Name != args["fault"] || o.Effect == 0 || o.Fault.Kind == scenario.Slow {
			continue // a slow pod answers
		}
		spells := []Window{{From: o.Effect, To: o.over(o.Heal)}}
		if len(o.Downs) > 0 {
			spells = o.Downs
		}
		for _, s := range spells {
			f(o, s)
		}
	}
}

// lastToSickMS is how late after the fault's effect the last of toSick's connections
// began; zero if there was none.
func lastToSickMS(r *Record, args map[string]string) Value {
	last, opened := time.Duration(0), 0
	r.eachSpell(args, func(o Outage, s Window) {
		r.arrivals(o, s, func(started time.Duration) { last = max(last, started-s.From) })
		opened += r.openedIn(o, s)
	})
	if opened == 0 {
		return Value{Number: math.NaN(), Note: "clients opened no connection in that time that a sick pod could have got"}
	}
	return number(float64(last) / float64(time.Millisecond))
}

// openedIn counts connections that began in the span, to a port that the
// outage's pods have lost.
func (r *Record) openedIn(o Outage, span Window) (n int) {
	ports := r.Layout.Scenario.Ports()
	for _, a := range r.Attempts {
		if span.Has(a.Started) && o.hits(ports[a.Port]) {
			n++
		}
	}
	return n
}

// arrivals calls f with the start of each connection that met a pod of o in the span.
func (r *Record) arrivals(o Outage, span Window, f func(started time.Duration)) {
	ports := r.Layout.Scenario.Ports()
	for _, e := range r.Events {
		p, ok := podOf(r.Layout, e)
		if e.Kind != Connection || !ok || !span.Has(e.Started) || !slices.Contains(o.Victims.Pods, p.Name) {
			continue
		}
		i := slices.IndexFunc(ports, func(q scenario.Port) bool { return q.Port == e.Port || q.Target == e.Port })
		if i < 0 || !slices.Contains(o.Victims.Ports, ports[i].Target) {
			continue
		}
		// A node proxy that cannot be reached logs nothing: then the gateway's own
		// line tells.
		if e.Direction == "inbound" || noWitness(o.Fault) && e.Direction == "forward" && e.Result != "ok" {
			f(e.Started)
		}
	}
	if noWitness(o.Fault) {
		for _, a := range r.Attempts { // it cannot have answered; if it did, say so
			if span.Has(a.Started) && slices.Contains(o.Victims.Pods, a.Pod) {
				f(a.Started)
			}
		}
	}
}

// noWitness reports whether the fault keeps connections from the node proxy of
// its pods.
func noWitness(f scenario.Fault) bool {
	return f.AimedAt() == scenario.AtNode || f.Kind == scenario.Blackhole
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

// collateral is how many healthy endpoint:ports the ejection e left out. What a
// process believes that is cut off or stood still is the fault's doing.
func (r *Record) collateral(e Event) (n int) {
	if r.dead(e.Process, e.At, time.Second) {
		return 0
	}
	switch e.Scope {
	case "endpoint":
		if p, ok := podOf(r.Layout, e); ok && !r.sick(p, e.Port, e.At, time.Second) {
			return 1
		}
	case "hop": // the pod's address: every port of it
		p, ok := podOf(r.Layout, e)
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
func (r *Record) processDead(p scenario.Pod, t time.Duration) bool {
	return r.dead(p.Node, t, time.Second)
}

func gatewayEjections(r *Record, _ map[string]string) Value {
	n := 0
	for _, e := range r.Events {
		if e.Kind == OutlierChanged && e.Edge == "ejected" && e.Scope == "gateway" && e.At >= 0 &&
			!r.dead(e.Gateway, e.At, time.Second) && !r.dead(e.Process, e.At, time.Second) {
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
			if p, ok := podOf(r.Layout, e); ok && slices.Contains(o.Victims.Pods, p.Name) {
				n++
			}
		}
	}
	return number(n)
}
