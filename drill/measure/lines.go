package measure

import (
	"fmt"
	"maps"
	"slices"
)

// Lines counts the lines of one process's log.
type Lines struct {
	Outbound, Inbound, Forward int // about connections, by direction
	// Through is how many connections went well through the process, a gateway,
	// by what node proxies wrote.
	Through int
	Lost    int // lines that it could not write
}

// CountLine counts e in logged, by process.
func CountLine(logged map[string]Lines, e Event) {
	l := logged[e.Process]
	switch {
	case e.Kind == LinesLost:
		l.Lost += e.Lines
	case e.Kind != Connection:
		return
	case e.Direction == "outbound":
		l.Outbound++
	case e.Direction == "inbound":
		l.Inbound++
	case e.Direction == "forward":
		l.Forward++
	}
	logged[e.Process] = l
	if e.Kind == Connection && e.Direction == "outbound" && e.Gateway != "" && e.Result == "ok" && !e.TunnelLost {
		g := logged[e.Gateway]
		g.Through++
		logged[e.Gateway] = g
	}
}

// minLogged is the share of the connections through a process that it must have
// logged. What it carried when it was killed it did not.
const minLogged = 0.5

// doubtLogs asks whether the drill understood what every process wrote: counts
// of what they never logged would be zero whatever they did. Clients know which
// node proxies a connection went through; the clients' node proxies know the
// gateways.
func (r *Record) doubtLogs() (out []string) {
	from, to := map[string]int{}, map[string]int{} // by node proxy
	for _, a := range r.Attempts {
		p, ok := r.Layout.Pod(a.Pod)
		if !ok || a.CutError != "" {
			continue
		}
		node := r.Layout.Clients[a.Client].Node
		if from[node]++; p.Node != node {
			to[p.Node]++
		}
	}
	check := func(name string, lines, connections int, what string) {
		if float64(lines) < minLogged*float64(connections) {
			out = append(out, fmt.Sprintf("%s logged %d %s connections of %d that went through it: what processes saw and believed is not known; keep its log with --keep and look for lines that were dropped or changed", name, lines, what, connections))
		}
	}
	for _, n := range r.Layout.Nodes {
		check(n.Name, r.Logged[n.Name].Outbound, from[n.Name], "outbound")
		check(n.Name, r.Logged[n.Name].Inbound, to[n.Name], "inbound")
	}
	for _, g := range r.Layout.Gateways {
		// One stream that it forwards carries many connections, and is logged at its
		// end: one killed for good may have logged none.
		l := r.Logged[g.Name]
		if l.Forward == 0 && l.Through > 0 && !r.killedForGood(g.Name) {
			check(g.Name, 0, l.Through, "forwarded")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Logged)) {
		if n := r.Logged[name].Lost; n > 0 {
			out = append(out, fmt.Sprintf("%s lost %d lines of its log: what it saw and believed is not known; use a quieter machine", name, n))
		}
	}
	return out
}

func (r *Record) killedForGood(process string) bool {
	return slices.ContainsFunc(r.Outages, func(o Outage) bool { return o.Victims.Process == process && o.Healed == 0 })
}
