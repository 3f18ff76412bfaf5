package measure

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// hangs reports whether connections to a pod that a fault of the kind hit get no answer, not
// even a refusal: they fail when their timeout ends.
func hangs(k scenario.Kind) bool {
	return k == scenario.Hang || k == scenario.Freeze || k == scenario.Blackhole
}

// grace is how long after a fault's end an ejection may still be its doing: a
// verdict on connections that began before.
func grace(k scenario.Kind) time.Duration {
	if hangs(k) {
		return 5 * time.Second
	}
	return time.Second
}

// sick reports whether the outages made connections to pod:port fail at t,
// give or take slack after each one's end. port is a target port; 0 asks for
// every port of the pod.
func (r *Record) sick(pod scenario.Pod, port uint16, t, slack time.Duration) bool {
	if port == 0 {
		for _, p := range r.Layout.Scenario.Ports() {
			if !r.sick(pod, p.Target, t, slack) {
				return false
			}
		}
		return true
	}
	for _, o := range r.Outages {
		if o.Fault.Kind == scenario.Slow {
			continue // it answers
		}
		if slices.Contains(o.Victims.Pods, pod.Name) && slices.Contains(o.Victims.Ports, port) && o.during(t, slack) {
			return true
		}
	}
	return r.cutOff(pod.Network, t, slack)
}

// during reports whether the outage lasted at t, or had ended within slack,
// doubled to its kind's own grace when slack is not 0.
func (o Outage) during(t, slack time.Duration) bool {
	if o.Begin == 0 && o.Effect == 0 {
		return false // never injected
	}
	if slack > 0 {
		slack = max(slack, grace(o.Fault.Kind))
	}
	if len(o.Downs) > 0 {
		return slices.ContainsFunc(o.Downs, func(w Window) bool { return t >= w.From && t < later(w.To, slack) })
	}
	return t >= o.Begin && t < later(o.over(o.Healed), slack)
}

// later is t+d, or the end of time.
func later(t, d time.Duration) time.Duration {
	if t > 1<<62 {
		return t
	}
	return t + d
}

// cutOff reports whether every gateway of network was dead at t.
func (r *Record) cutOff(network string, t, slack time.Duration) bool {
	for _, g := range r.Layout.GatewaysOf(network) {
		if !r.dead(g, t, slack) {
			return false
		}
	}
	return true
}

// dead reports whether an outage had killed the process at t.
func (r *Record) dead(process string, t, slack time.Duration) bool {
	return slices.ContainsFunc(r.Outages, func(o Outage) bool { return o.Victims.Process == process && o.during(t, slack) })
}

// capacity is how much healthy capacity network had for the port in w, on
// average: the sum of its pods' weights, sick ones left out while they were.
func (r *Record) capacity(network string, port scenario.Port, w Window) float64 {
	const steps = 200
	if w.To <= w.From {
		return 0
	}
	sum := 0.0
	for _, p := range r.Layout.Pods {
		if p.Network != network {
			continue
		}
		well := 0
		for i := range steps {
			t := w.From + (w.To-w.From)*time.Duration(2*i+1)/(2*steps)
			if !r.sick(p, port.Target, t, 0) {
				well++
			}
		}
		sum += float64(p.Capacity) * float64(well) / steps
	}
	return sum
}

// causeOf names the outage that explains why the held connection a broke, or
// returns "".
func (r *Record) causeOf(a Attempt) string {
	pod, _ := r.Layout.Pod(a.Pod)
	client := r.Layout.Clients[a.Client]
	port := r.Layout.Scenario.Ports()[a.Port].Target
	for _, o := range r.Outages {
		// What began before the fault ended may break until its deadline.
		if a.CutAt < o.Begin || a.CutAt >= o.over(o.Healed)+r.Layout.Scenario.Traffic.Timeout {
			continue
		}
		f := o.Fault
		switch f.AimedAt() {
		case scenario.AtPods:
			if breaksOpen(f.Kind) && slices.Contains(o.Victims.Pods, pod.Name) && slices.Contains(o.Victims.Ports, port) {
				return f.Name + ": " + string(f.Kind) + " " + pod.Name
			}
		case scenario.AtNode:
			if pod.Node == o.Victims.Process || client.Node == o.Victims.Process {
				return f.Name + ": " + did(f.Kind) + " " + o.Victims.Process
			}
		case scenario.AtGateway:
			if r.through(a, o.Victims.Process) {
				return f.Name + ": " + did(f.Kind) + " " + o.Victims.Process
			}
		}
	}
	return ""
}

// breaksOpen reports whether faults of the kind break connections to a pod that
// were made before.
func breaksOpen(k scenario.Kind) bool {
	return k == scenario.Silent || k == scenario.PodKill || k == scenario.Freeze || k == scenario.Blackhole
}

// did says what was done to a process.
func did(k scenario.Kind) string {
	switch k {
	case scenario.Freeze:
		return "froze"
	case scenario.Blackhole:
		return "cut off"
	}
	return "killed"
}

// through reports whether the connection ran through gateway, or may have: no
// other one logged it.
func (r *Record) through(a Attempt, gateway string) bool {
	pod, _ := r.Layout.Pod(a.Pod)
	if r.Layout.Clients[a.Client].Network == pod.Network {
		return false
	}
	if !slices.Contains(r.Layout.GatewaysOf(pod.Network), gateway) {
		return false
	}
	return a.Gateway == "" || a.Gateway == gateway
}
