package measure

import (
	"fmt"
	"math"
	"slices"
)

// answered counts answers by pod over the settled part of the phase.
func (r *Record) answered(args map[string]string) (byPod map[string]int, w Window) {
	w = r.settled(r.window(args["phase"]))
	byPod = map[string]int{}
	r.each(args, w, func(a Attempt) {
		if a.Pod != "" {
			byPod[a.Pod]++
		}
	})
	return byPod, w
}

func (r *Record) byNetwork(byPod map[string]int) map[string]int {
	out := map[string]int{}
	for name, n := range byPod {
		p, _ := r.Layout.Pod(name)
		out[p.Network] += n
	}
	return out
}

func share(r *Record, args map[string]string) Value {
	byPod, _ := r.answered(args)
	nets, all := r.byNetwork(byPod), 0
	for _, n := range nets {
		all += n
	}
	if all == 0 {
		return none
	}
	return Value{Number: float64(nets[args["network"]]) / float64(all), Note: fmt.Sprintf("%d of %d", nets[args["network"]], all)}
}

func ratio(r *Record, args map[string]string) Value {
	byPod, _ := r.answered(args)
	nets := r.byNetwork(byPod)
	a, b := nets[args["network"]], nets[args["to"]]
	if a+b == 0 {
		return none
	}
	return Value{Number: float64(a) / float64(b), Note: fmt.Sprintf("%d : %d", a, b)} // b = 0: +Inf
}

// capacityError compares ratio with that of the mean healthy capacities over
// the same time. Without a port selector every port counts alike.
func capacityError(r *Record, args map[string]string) Value {
	got := ratio(r, args)
	if math.IsNaN(got.Number) {
		return none
	}
	w := r.settled(r.window(args["phase"]))
	var a, b float64
	for _, p := range r.Layout.Scenario.Ports() {
		if args["port"] == "" || args["port"] == p.Name {
			a += r.capacity(args["network"], p, w)
			b += r.capacity(args["to"], p, w)
		}
	}
	if a == 0 || b == 0 {
		return Value{Number: math.NaN(), Note: "one of the networks had no healthy capacity: use share"}
	}
	return Value{Number: math.Abs(got.Number/(a/b) - 1), Note: fmt.Sprintf("%s, healthy capacity %.3g : %.3g", got.Note, a, b)}
}

// victimsShare compares the answers of the fault's pods on a port with what the
// pods of the same networks gave that are healthy on it.
func victimsShare(r *Record, args map[string]string) Value {
	phase := args["phase"]
	if phase == "" {
		phase = args["fault"]
	}
	byPod, w := r.answered(map[string]string{"port": args["port"], "phase": phase})
	port, _ := r.Layout.Scenario.PortByName(args["port"])
	i := slices.IndexFunc(r.Outages, func(o Outage) bool { return o.Fault.Name == args["fault"] })
	if i < 0 {
		return none
	}
	victims := r.Outages[i].Victims.Pods
	var got, all, weight, total float64
	for _, p := range r.Layout.Pods {
		if !slices.ContainsFunc(victims, func(v string) bool { q, _ := r.Layout.Pod(v); return q.Network == p.Network }) {
			continue
		}
		mine := slices.Contains(victims, p.Name)
		if !mine && r.sick(p, port.Target, w.From, 0) {
			continue
		}
		all += float64(byPod[p.Name])
		total += float64(p.Capacity)
		if mine {
			got += float64(byPod[p.Name])
			weight += float64(p.Capacity)
		}
	}
	if all == 0 || weight == 0 {
		return none
	}
	return Value{Number: got / all / (weight / total), Note: fmt.Sprintf("%.0f of %.0f", got, all)}
}
