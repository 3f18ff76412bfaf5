package drill

import (
	"slices"
	"time"
)

// grace is how long after a fault's end an ejection may still be its doing: a
// verdict on connections that began before. A connect that hangs takes as long
// as the node proxy waits for the application.
func grace(k Kind) time.Duration {
	if k == Hang {
		return 5 * time.Second
	}
	return time.Second
}

// sick reports whether the outages made connections to pod:port fail at t,
// give or take slack after each one's end. port is a target port; 0 asks for
// every port of the pod.
func (r *Record) sick(pod Pod, port uint16, t, slack time.Duration) bool {
	if port == 0 {
		for _, p := range r.Layout.Scenario.Ports() {
			if !r.sick(pod, p.Target, t, slack) {
				return false
			}
		}
		return true
	}
	for _, o := range r.Outages {
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
	end := o.over(o.Healed)
	if slack > 0 && end < 1<<62 {
		end += max(slack, grace(o.Fault.Kind))
	}
	return t >= o.Begin && t < end
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
func (r *Record) capacity(network string, port Port, w Window) float64 {
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
		switch o.Fault.Kind {
		case PodKill, Silent:
			if slices.Contains(o.Victims.Pods, pod.Name) && slices.Contains(o.Victims.Ports, port) {
				return o.Fault.Name + ": " + string(o.Fault.Kind) + " " + pod.Name
			}
		case NodeProxyKill:
			if pod.Node == o.Victims.Process || client.Node == o.Victims.Process {
				return o.Fault.Name + ": killed " + o.Victims.Process
			}
		case GatewayKill:
			if r.through(a, o.Victims.Process) {
				return o.Fault.Name + ": killed " + o.Victims.Process
			}
		}
	}
	return ""
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
