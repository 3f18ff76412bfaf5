package measure

import (
	"math"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// A pod that refuses is measured from the first refused connection. One that hangs is measured
// from the fault: its first connection fails after a timeout, when the pod is ejected.
func TestHangIsMeasuredFromFault(t *testing.T) {
	for kind, want := range map[scenario.Kind]float64{scenario.Refuse: 3, scenario.Hang: 1202, scenario.Freeze: 1202, scenario.Blackhole: 1202} {
		text := strings.Replace(twoNetworks, refuses, "kind: "+string(kind)+", at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", 1)
		if kind == scenario.Freeze || kind == scenario.Blackhole { // these hit whole pods
			text = strings.Replace(text, "names: [west-2], port: A", "names: [west-2]", 1)
		}
		r := small(t, text)
		pod, _ := r.Layout.Pod("west-2")
		result := "timeout"
		if kind == scenario.Refuse {
			result = "refused"
		}
		failed := func(started, at float64) Event {
			return Event{Kind: Connection, Direction: "inbound", Process: pod.Node, Workload: "west-2", Port: 8080, Target: 8080, Result: result, Started: ms(started), At: ms(at)}
		}
		if result == "timeout" {
			r.Events = []Event{failed(3900, 4900)}
			if n := r.news(""); len(n) != 0 {
				t.Errorf("%s: a connection that began before the fault is measured: %+v", kind, n)
			}
		}
		r.Events = append(r.Events, failed(4200, 5200))
		for _, g := range r.Layout.GatewaysOf("west") {
			r.Events = append(r.Events, Event{Kind: OutlierChanged, Edge: "ejected", Scope: "endpoint", Process: g, Endpoint: pod.Endpoint, Port: 8080, At: ms(5203)})
		}
		if got := measure(t, r, "exclude_ms").Number; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: gateways ejected the pod after %v ms; want %v", kind, got, want)
		}
	}
}
