package measure

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// crossings is how many client connections are known to have crossed what the
// outage hit while it was ill. Clients and logs see the same connections, each
// not all of them, so the larger count of the two is a lower bound.
func (r *Record) crossings(o Outage) int {
	if o.Effect == 0 {
		return 0
	}
	clients, logs := 0, 0
	spells := o.spells(r.Layout.Scenario.Duration)
	in := func(crossed func(ill Window) bool) int {
		if slices.ContainsFunc(spells, crossed) {
			return 1
		}
		return 0
	}
	for _, a := range r.Attempts {
		clients += in(func(ill Window) bool { return r.attemptCrossed(o, a, ill) })
	}
	for _, e := range r.Events {
		logs += in(func(ill Window) bool { return r.eventCrossed(o, e, ill) })
	}
	return max(clients, logs)
}

// attemptCrossed reports whether what the client itself knows of a connection
// proves that it crossed the outage in one of its spells.
func (r *Record) attemptCrossed(o Outage, a Attempt, ill Window) bool {
	client := r.Layout.Clients[a.Client]
	open := ill.Meets(a.Started, a.end())
	if o.Fault.Kind == scenario.FederationCut {
		pod, ok := r.Layout.Pod(a.Pod)
		return ok && ill.Has(a.Started) && o.separates(client.Network, pod.Network)
	}
	if o.Victims.Process != "" && (client.Node == o.Victims.Process || a.Gateway == o.Victims.Process && a.CutError != "") {
		return open
	}
	if !slices.Contains(o.Victims.Pods, a.Pod) || !o.hits(r.Layout.Scenario.Ports()[a.Port]) {
		return false
	}
	switch {
	case onlyNew(o.Fault.Kind):
		return false // an answer of a pod that refuses was asked for before
	case o.Fault.Kind == scenario.Slow:
		return ill.Has(a.Started)
	}
	return open
}

// separates reports whether the cut stands between two networks.
func (o Outage) separates(a, b string) bool {
	named := o.Fault.Target.Networks
	return a != b && (len(named) == 0 || slices.Contains(named, a) || slices.Contains(named, b))
}

// onlyNew reports whether faults of the kind leave connections alone that were
// made before.
func onlyNew(k scenario.Kind) bool {
	return k == scenario.Refuse || k == scenario.Hang || k == scenario.Flap
}

// hits reports whether the outage takes the port from its pods.
func (o Outage) hits(p scenario.Port) bool { return slices.Contains(o.Victims.Ports, p.Target) }

// eventCrossed reports whether a line of a log proves that a client's
// connection crossed the outage. Probes of the processes themselves do not.
func (r *Record) eventCrossed(o Outage, e Event, ill Window) bool {
	if e.Kind != Connection {
		return false
	}
	return e.AppFailed() && ill.Has(e.At) && r.atVictim(o, e) || ill.Meets(e.Started, e.At) && r.connectionCrossed(o, e, ill)
}

// connectionCrossed is for connections that lasted for at least an instant of
// the spell ill. When a try failed no line says; it is known to have met the
// spell only of a connection that began in it.
func (r *Record) connectionCrossed(o Outage, e Event, ill Window) bool {
	if ill.Has(e.Started) && slices.ContainsFunc(e.Tried, func(t Try) bool {
		return t.Gateway != "" && t.Gateway == o.Victims.Process || slices.Contains(o.Victims.Pods, t.Pod) && r.onVictimPort(o, e.Port)
	}) {
		return true
	}
	if g := o.Victims.Process; g != "" && e.Direction == "outbound" && e.Gateway == g || e.Direction == "forward" && e.Process == g && g != "" {
		return true
	}
	if !r.atVictim(o, e) {
		return false
	}
	if e.Direction == "inbound" {
		return ill.Has(e.Started) && (e.Result != "ok" || !onlyNew(o.Fault.Kind))
	}
	return e.Result != "ok" && (ill.Has(e.Started) || !onlyNew(o.Fault.Kind))
}

// atVictim reports whether e is about a pod and port that the outage hit.
func (r *Record) atVictim(o Outage, e Event) bool {
	p, ok := podOf(r.Layout, e)
	return ok && slices.Contains(o.Victims.Pods, p.Name) && r.onVictimPort(o, e.Port)
}

// onVictimPort maps a service or target port.
func (r *Record) onVictimPort(o Outage, number uint16) bool {
	return slices.ContainsFunc(r.Layout.Scenario.Ports(), func(p scenario.Port) bool {
		return (p.Port == number || p.Target == number) && o.hits(p)
	})
}

// notCrossed says why no connection crossed the outage, and what to do.
func (r *Record) notCrossed(o Outage) string {
	ill, ports := o.ill(r.Layout.Scenario.Duration), r.Layout.Scenario.Ports()
	meant, home := 0, map[string]int{} // connections in its time; answers on the client's own network
	for _, a := range r.Attempts {
		if !ill.Has(a.Started) || len(o.Victims.Pods) > 0 && !o.hits(ports[a.Port]) {
			continue
		}
		meant++
		if p, ok := r.Layout.Pod(a.Pod); ok && p.Network == r.Layout.Clients[a.Client].Network {
			home[p.Network]++
		}
	}
	lasted := (ill.To - ill.From).Round(time.Millisecond)
	if meant == 0 {
		return fmt.Sprintf("clients opened no connection that could meet it in the %v that it lasted: raise traffic.rate or lengthen the fault", lasted)
	}
	if where, all := soleNetwork(home, meant); all {
		return r.notCrossedAtHome(o, where, meant)
	}
	if name := r.alreadyOut(o); name != "" {
		return fmt.Sprintf("%s was left out already when it began: let the fault before it heal earlier, or begin later", name)
	}
	if o.Fault.Kind == scenario.FederationCut {
		return fmt.Sprintf("none of %d connections went from one side of the cut to the other: let clients use pods of another network", meant)
	}
	if len(o.Victims.Pods) == 0 {
		return fmt.Sprintf("none of %d connections is known to have run through %s: keep some open with traffic.hold, or raise traffic.rate", meant, o.Victims.Process)
	}
	return fmt.Sprintf("none of %d connections reached %s: raise traffic.rate, lengthen the fault, or aim at more pods", meant, strings.Join(o.Victims.Pods, ", "))
}

// soleNetwork returns the network that gave all answers, if one did.
func soleNetwork(answers map[string]int, all int) (string, bool) {
	for name, n := range answers {
		if n == all {
			return name, true
		}
	}
	return "", false
}

func (r *Record) notCrossedAtHome(o Outage, where string, n int) string {
	if where != o.Fault.Target.Network {
		return fmt.Sprintf("clients prefer local pods: all %d connections were answered on their own network %s: aim at %s, give it no pods, or set trafficDistribution: Any", n, where, where)
	}
	if o.Fault.AimedAt() == scenario.AtGateway {
		return fmt.Sprintf("clients on %s do not use its gateways: all %d connections were answered there: put clients on another network", where, n)
	}
	return fmt.Sprintf("all %d connections went to other pods of %s: aim at more pods, or raise traffic.rate", n, where)
}

// alreadyOut names a victim that somebody had left out when the outage began.
func (r *Record) alreadyOut(o Outage) string {
	at := o.Begin.Seconds()
	for _, b := range r.beliefs() {
		if (slices.Contains(o.Victims.Pods, b.About) || b.About != "" && b.About == o.Victims.Process) && b.From < at && (b.To == nil || *b.To > at) {
			return b.About
		}
	}
	return ""
}
