package measure

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

const refuses = "kind: refuse, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}"

func TestAFlappingPodIsSickWhileItIsDown(t *testing.T) {
	r := small(t, strings.Replace(twoNetworks, refuses, "kind: flap, down: 1s, up: 1s, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", 1))
	r.Outages[0].Downs = []Window{{From: ms(4000), To: ms(5000)}, {From: ms(6000), To: ms(7000)}}
	pod, _ := r.Layout.Pod("west-2")
	for at, want := range map[float64]bool{3999: false, 4000: true, 4999: true, 5000: false, 5999: false, 6500: true, 7000: false, 7999: false} {
		if got := r.sick(pod, 8080, ms(at), 0); got != want {
			t.Errorf("at %v ms: sick %v, want %v", at, got, want)
		}
	}
	if !r.sick(pod, 8080, ms(5900), time.Second) || r.sick(pod, 8080, ms(8100), time.Second) {
		t.Error("an ejection within a second after it came up is the fault's, later ones are not")
	}
	arrived := func(at float64) {
		r.Events = append(r.Events, Event{Kind: Connection, Direction: "inbound", Workload: "west-2", Port: 8080, Result: "refused", Started: ms(at), At: ms(at + 1)})
		r.answer(ms(at), "west-1", 0)
	}
	for _, at := range []float64{4100, 4600, 5500, 6100, 6700, 7500} {
		arrived(at)
	}
	if got := measure(t, r, "to_sick(after=500ms)").Number; got != 2 {
		t.Errorf("to_sick 500 ms after each edge: %v, want 2", got)
	}
	if got := measure(t, r, "to_sick(after=1s)").Number; !math.IsNaN(got) {
		t.Errorf("to_sick later than it is ever down: %v, want nothing to measure", got)
	}
	if got := r.capacity("west", r.Layout.Scenario.Ports()[0], Window{From: ms(4000), To: ms(8000)}); math.Abs(got-3.5) > .05 {
		t.Errorf("capacity of west meanwhile: %v, want 3.5 of 4", got)
	}
}

func TestASlowPodIsNotSick(t *testing.T) {
	r := small(t, strings.Replace(twoNetworks, refuses, "kind: slow, delay: 1s, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", 1))
	pod, _ := r.Layout.Pod("west-2")
	if r.sick(pod, 8080, ms(5000), 0) {
		t.Error("it answers, late")
	}
	r.Events = []Event{{Kind: OutlierChanged, Edge: "ejected", Scope: "endpoint", Process: "west-gw-1", Endpoint: pod.Endpoint, Port: 8080, At: ms(5000)}}
	if got := measure(t, r, "collateral_ejections").Number; got != 1 {
		t.Errorf("leaving it out: %v collateral ejections, want 1", got)
	}
}

// A gateway that is cut off sees nobody. That is no fault of the pods, nor of
// the mesh.
func TestWhatACutOffProcessBelievesIsNotCollateral(t *testing.T) {
	r := small(t, strings.Replace(twoNetworks, refuses, "kind: blackhole, at: 4s, until: 8s, target: {network: west, gateway: 1}", 1))
	pod, _ := r.Layout.Pod("west-2")
	for _, process := range []string{"west-gw-1", "west-gw-2"} {
		r.Events = append(r.Events, Event{Kind: OutlierChanged, Edge: "ejected", Scope: "hop", Process: process, Endpoint: pod.Endpoint, At: ms(5000)},
			Event{Kind: OutlierChanged, Edge: "ejected", Scope: "gateway", Process: process, Gateway: "west-gw-2", At: ms(5000)})
	}
	if got := measure(t, r, "collateral_ejections").Number; got != 2 {
		t.Errorf("got %v, want the 2 ports that the living gateway left out", got)
	}
	if got := measure(t, r, "gateway_ejections").Number; got != 1 {
		t.Errorf("got %v, want the 1 of the living gateway", got)
	}
}

func TestFaultsAreAimedByTheirKeys(t *testing.T) {
	for target, want := range map[string]scenario.Victims{
		"{network: west, names: [west-2]}": {Pods: []string{"west-2"}, Ports: []uint16{8080, 9081}},
		"{network: west, gateway: 2}":      {Process: "west-gw-2"},
		"{network: west, node: 2}":         {Process: "west-node-2", Pods: []string{"west-2", "west-4"}, Ports: []uint16{8080, 9081}},
	} {
		s := mustParse(t, strings.Replace(twoNetworks, refuses, "kind: freeze, at: 4s, until: 8s, target: "+target, 1))
		got := scenario.NewLayout(s, 9).VictimsOf(0)
		if got.Process != want.Process || strings.Join(got.Pods, " ") != strings.Join(want.Pods, " ") || len(got.Ports) != len(want.Ports) && want.Pods != nil {
			t.Errorf("%s: got %+v, want %+v", target, got, want)
		}
	}
	for fault, want := range map[string]string{
		"kind: freeze, at: 4s, target: {network: west}":                                       "faults[0].target: \"\": aim it at one of: pods, gateway, node",
		"kind: blackhole, at: 4s, target: {network: west, node: 1}":                           "faults[0].target",
		"kind: freeze, at: 4s, target: {network: west, gateway: 1, node: 1}":                  "freeze does not take target.node: use network, gateway",
		"kind: freeze, at: 4s, target: {network: west, pods: 1, port: A}":                     "freeze takes every port of a pod: leave it out",
		"kind: slow, at: 4s, target: {network: west, pods: 1}":                                "faults[0].delay: is missing: must be between 10ms and 1m0s",
		"kind: flap, at: 4s, down: 1s, target: {network: west, pods: 1}":                      "faults[0].up: is missing: must be between 100ms",
		"kind: refuse, delay: 1s, at: 4s, target: {network: west, pods: 1}":                   "faults[0].delay: 1s: refuse does not take delay: only slow does",
		"kind: slow, delay: 1s, up: 1s, at: 4s, until: 8s, target: {network: west, pods: 1}":  "faults[0].up: 1s: slow does not take up: only flap does",
		"kind: flap, up: 1s, down: 10ms, at: 4s, until: 8s, target: {network: west, pods: 1}": "faults[0].down: 10ms: must be between 100ms",
	} {
		_, err := scenario.Parse("small.yaml", []byte(strings.Replace(twoNetworks, refuses, fault, 1)))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", fault, err, want)
		}
	}
}
