package measure

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// surgeOf is the span of the surge.
func surgeOf(r *Record) Window {
	g := r.Layout.Scenario.Traffic.Surge
	return Window{"surge", g.At, g.Until}
}

// How far a surge may be from what was asked for before nothing can be said.
const (
	maxLateSurge  = 500 * time.Millisecond // p99 of how late its connections begin
	lateAnswer    = 500 * time.Millisecond // an answer that takes longer is late
	maxRefusal    = 2 * time.Second        // a client that is refused later has waited in vain: it has failed
	minOverloaded = 0.01                   // share of its connections that were refused for overload or late
)

// doubtSurge asks whether the surge was offered, and whether it was more than
// could be served.
func (r *Record) doubtSurge() (out []string) {
	g := r.Layout.Scenario.Traffic.Surge
	if !g.Given() {
		return nil
	}
	if late := quantile("p99", r.late(true, r.window("run"))).Number; late > millis(maxLateSurge) {
		out = append(out, fmt.Sprintf("the generator was too late to offer the surge: 1 %% of its connections began more than %.0f ms late (at most %v): lower traffic.surge.rate or use a quieter machine", late, maxLateSurge))
	}
	all, refused, late := 0, 0, 0
	r.each(nil, surgeOf(r), func(a Attempt) {
		all++
		switch {
		case a.Refused:
			refused++
		case a.Error == "timeout", a.Answered() && a.Done-a.Started > lateAnswer:
			late++
		}
	})
	if float64(refused+late) < minOverloaded*float64(all) || all == 0 {
		out = append(out, fmt.Sprintf("the surge overloaded nobody: of its %d connections %d were refused for overload and %d took over %v, together less than %.0f %%: raise traffic.surge.rate", all, refused, late, lateAnswer, 100*minOverloaded))
	}
	return out
}

// logSlack is by how much a line's instants may differ from what a client saw of
// the same connection, on the one clock of the machine.
const logSlack = 5 * time.Millisecond

// markRefused finds the connections of the surge that a node proxy refused
// because it, or a hop behind it, was overloaded: the client saw a reset soon, and
// its node proxy has a line with that result of a connection that it accepted in
// between. Each line stands for one connection; a reset without one has failed.
func (r *Record) markRefused() {
	resets := map[string][]*Attempt{} // by the client's node proxy
	for i := range r.Attempts {
		a := &r.Attempts[i]
		a.Refused = false
		if a.Error == "reset" && a.Done-a.Started <= maxRefusal && r.Layout.Scenario.Traffic.Surge.Has(a.At) {
			node := r.Layout.Clients[a.Client].Node
			resets[node] = append(resets[node], a)
		}
	}
	accepted := r.refusals()
	for node, list := range resets {
		slices.SortStableFunc(list, func(a, b *Attempt) int { return cmp.Compare(a.Started, b.Started) })
		match(list, accepted[node])
	}
}

// refusals returns when each node proxy accepted what it refused for overload,
// in order.
func (r *Record) refusals() map[string][]time.Duration {
	out := map[string][]time.Duration{}
	for _, e := range r.Events {
		if e.Kind == Connection && e.Direction == "outbound" && e.Result == "overload" {
			out[e.Process] = append(out[e.Process], e.Started)
		}
	}
	for _, list := range out {
		slices.Sort(list)
	}
	return out
}

// match gives each instant to the attempt that lasted then and ended first, of
// those that have none yet: no other choice matches more (both are in order of
// time).
func match(attempts []*Attempt, instants []time.Duration) {
	var open []*Attempt // begun by the instant, by their end
	next := 0
	for _, t := range instants {
		for ; next < len(attempts) && attempts[next].Started-logSlack <= t; next++ {
			a := attempts[next]
			i, _ := slices.BinarySearchFunc(open, a, func(x, y *Attempt) int { return cmp.Compare(x.Done, y.Done) })
			open = slices.Insert(open, i, a)
		}
		over := 0
		for over < len(open) && open[over].Done+logSlack < t {
			over++
		}
		if open = open[over:]; len(open) > 0 {
			open[0].Refused = true
			open = open[1:]
		}
	}
}

func refusedByOverload(r *Record, args map[string]string) Value {
	n := 0
	r.each(args, r.span(args), func(a Attempt) {
		if a.Refused {
			n++
		}
	})
	return number(n)
}

func answeredPerSecond(r *Record, args map[string]string) Value {
	n, w := 0, r.span(args)
	if w.From >= w.To {
		return none
	}
	r.each(args, w, func(a Attempt) {
		if a.Answered() {
			n++
		}
	})
	return Value{Number: float64(n) / (w.To - w.From).Seconds(), Note: fmt.Sprintf("%d in %v", n, w.To-w.From)}
}
