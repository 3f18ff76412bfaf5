package measure

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// recorded is what a drill of two arms left: records, not yet judged.
type recorded struct {
	s    *scenario.Scenario
	arms []*Record
}

// whole returns a record of s in which every client did what the schedule says,
// pods answered in turn, and every fault happened as planned and was met.
func whole(t *testing.T, s *scenario.Scenario, arm scenario.Arm) *Record {
	t.Helper()
	r := &Record{Layout: scenario.NewLayout(s, 99), Arm: arm, Logged: map[string]Lines{}}
	for i, f := range s.Faults {
		o := Outage{Fault: f, Victims: r.Layout.VictimsOf(i), Begin: f.At, Effect: f.At + time.Millisecond, Proof: "as planned"}
		if f.Until != 0 {
			o.Heal, o.Healed = f.Until, f.Until+time.Millisecond
		}
		r.Outages = append(r.Outages, o)
	}
	ports := s.Ports()
	for i, a := range scenario.Schedule(s, len(r.Layout.Clients)) {
		pod := r.Layout.Pods[i/len(ports)%len(r.Layout.Pods)]
		if r.sick(pod, ports[a.Port].Target, a.At, 0) {
			if !r.sick(pod, ports[a.Port].Target, a.At-time.Second, 0) { // soon it is left out
				r.refuse(pod, ports[a.Port], a.At)
			}
			pod = r.Layout.Pods[len(r.Layout.Pods)-1]
		}
		r.Attempts = append(r.Attempts, Attempt{Arrival: a, Started: a.At, Done: a.At + ms(10), Pod: pod.Name})
		client, gateway := r.Layout.Clients[a.Client], ""
		if pod.Network != client.Network {
			gateway = r.Layout.GatewaysOf(pod.Network)[0]
			CountLine(r.Logged, Event{Kind: Connection, Process: gateway, Direction: "forward", Result: "ok"})
		}
		CountLine(r.Logged, Event{Kind: Connection, Process: client.Node, Direction: "outbound", Gateway: gateway, Result: "ok"})
		if pod.Node != client.Node {
			CountLine(r.Logged, Event{Kind: Connection, Process: pod.Node, Direction: "inbound", Result: "ok"})
		}
	}
	r.Arrange()
	return r
}

// refuse has the application of pod refuse a client's connection.
func (r *Record) refuse(pod scenario.Pod, p scenario.Port, at time.Duration) {
	r.Events = append(r.Events, Event{At: at + ms(1), Process: pod.Node, Kind: Connection, Direction: "inbound", Endpoint: pod.Endpoint,
		Port: p.Port, Target: p.Target, Result: "refused", Started: at})
}

// from yields the places of the first n connections from t on.
func (r *Record) from(t time.Duration, n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, a := range r.Attempts {
			if a.At >= t && n > 0 {
				if n--; !yield(i) {
					return
				}
			}
		}
	}
}

// answerSick lets west-2 answer n connections to port A from t on.
func (r *Record) answerSick(t time.Duration, n int) {
	for i := range r.from(t, 2*n) {
		if r.Attempts[i].Port == 0 {
			r.Attempts[i].Pod = "west-2"
		}
	}
}

// forget changes what a process wrote.
func (r *Record) forget(process string, change func(*Lines)) {
	l := r.Logged[process]
	change(&l)
	r.Logged[process] = l
}

// breakOff lets clients break off every connection of the span before its answer.
func (r *Record) breakOff(from, to time.Duration) {
	for i, a := range r.Attempts {
		if a.At >= from && a.At < to {
			r.Attempts[i].Pod, r.Attempts[i].Aborted, r.Attempts[i].Done = "", a.At+ms(3), a.At+ms(3)
		}
	}
}

const judged = `
name: judged
duration: 12s
networks:
  - {name: east, gateways: 1, nodes: 2}
  - {name: west, gateways: 2, nodes: 2, pods: 4}
  - {name: north, pods: 2}
services:
  - name: echo
    ports: [{name: A, port: 8080}, {name: B, port: 8081}]
clients: [{network: east}]
traffic: {rate: 50, hold: {fraction: 0.1, for: 2s}}
faults:
  - {name: sick, kind: refuse, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}}
arms: [{name: one}, {name: two}]
assertions:
  - {name: none fails, metric: failed, bound: "== 0"}
  - {name: none fails after it, metric: failed(phase=healed), bound: "== 0"}
  - {name: none is cut, metric: cut, bound: "== 0"}
  - {name: none ends at the sick pod, metric: to_sick(after=1s), bound: "== 0"}
  - {name: the healthy stay in, metric: collateral_ejections, bound: "== 0"}
  - {name: fast enough, metric: latency_ms(q=p99), bound: "< 100"}
  - {name: slow enough, metric: latency_ms(q=p50), bound: ">= 5"}
`

func recording(t *testing.T) *recorded {
	t.Helper()
	s := mustParse(t, judged)
	d := &recorded{s: s}
	for _, arm := range s.Arms {
		d.arms = append(d.arms, whole(t, s, arm))
	}
	return d
}

func (d *recorded) judge() *Result {
	r := &Result{Schema: Schema, Scenario: d.s.Name, AsRun: d.s, Started: zero, Finished: zero.Add(time.Minute)}
	for _, a := range d.arms {
		r.Arms, r.Assertions = append(r.Arms, a.Result()), append(r.Assertions, a.Evaluate()...)
	}
	r.Judge()
	return r
}

// Every mutation takes away a reason to believe the sound record. None may be
// judged held.
func TestNoMutationOfASoundRecordIsHeld(t *testing.T) {
	if r := recording(t).judge(); r.Verdict != Held || !r.Latencies.Comparable {
		t.Fatalf("the sound record: %s because of %q, latencies %+v", r.Verdict, r.Reasons, r.Latencies)
	}
	d := recording(t)
	d.arms[1].forget("west-gw-1", func(l *Lines) { l.Forward = 1 })
	if r := d.judge(); r.Verdict != Held {
		t.Fatalf("a gateway that forwarded all connections in one stream: %s because of %q", r.Verdict, r.Reasons)
	}
	for name, c := range map[string]struct {
		want  Verdict
		why   string
		spoil func(d *recorded, r *Record) // r is the second arm
	}{
		"fault never injected":    {Inconclusive, "fault sick was never injected", func(_ *recorded, r *Record) { r.Outages = nil }},
		"outage of another fault": {Inconclusive, "fault sick was never injected", func(_ *recorded, r *Record) { r.Outages[0].Fault.Name = "other" }},
		"fault without effect":    {Inconclusive, "did not take effect", func(_ *recorded, r *Record) { r.Outages[0].Effect, r.Outages[0].Proof = 0, "west-2 answers" }},
		"fault too late":          {Inconclusive, "took effect 2s late", func(_ *recorded, r *Record) { r.Outages[0].Effect = ms(6000) }},
		"fault not healed":        {Inconclusive, "did not heal", func(_ *recorded, r *Record) { r.Outages[0].Healed = 0 }},
		"fault met by nobody": {Inconclusive, "no client connection crossed it", func(_ *recorded, r *Record) {
			r.Events = nil
		}},
		"fault met by probes alone": {Inconclusive, "no client connection crossed it", func(_ *recorded, r *Record) {
			for i := range r.Events {
				r.Events[i].Kind, r.Events[i].Edge, r.Events[i].Scope = OutlierChanged, "ejected", "endpoint"
			}
		}},
		"fault met on another port": {Inconclusive, "no client connection crossed it", func(_ *recorded, r *Record) {
			for i := range r.Events {
				r.Events[i].Port, r.Events[i].Target = 8081, 8081
			}
		}},
		"fault met after healing": {Inconclusive, "no client connection crossed it", func(_ *recorded, r *Record) {
			for i := range r.Events {
				r.Events[i] = r.Events[i].Since(-ms(4000))
			}
		}},
		"fault met by what had tried its pod before": {Inconclusive, "no client connection crossed it", func(_ *recorded, r *Record) {
			r.Events = []Event{{Kind: Connection, Direction: "outbound", Result: "ok", Process: "east-node-1", Workload: "west-1", Port: 8080,
				Started: ms(2500), At: ms(4500), Tries: 2, Tried: []Try{{Pod: "west-2", Reason: "refused"}}}}
		}},
		"clients stay at home": {Inconclusive, "clients prefer local pods", func(_ *recorded, r *Record) {
			r.Events = nil
			r.Layout = scenario.NewLayout(r.Layout.Scenario, 99)
			for i := range r.Layout.Clients {
				r.Layout.Clients[i].Network = "north"
			}
			for i := range r.Attempts {
				r.Attempts[i].Pod = "north-1"
			}
		}},
		"fewer connections than planned": {Inconclusive, "of the", func(_ *recorded, r *Record) { r.Attempts = r.Attempts[:len(r.Attempts)-1] }},
		"more connections than planned":  {Inconclusive, "of the", func(_ *recorded, r *Record) { r.Attempts = append(r.Attempts, r.Attempts[0]) }},
		"no connection at all":           {Inconclusive, "no client opened", func(_ *recorded, r *Record) { r.Attempts = nil }},
		"generator stopped half way": {Inconclusive, "nothing is known of", func(_ *recorded, r *Record) {
			for i := len(r.Attempts) / 2; i < len(r.Attempts); i++ {
				r.Attempts[i] = Attempt{}
			}
		}},
		"generator stalled for a second": {Inconclusive, "fell behind", func(_ *recorded, r *Record) {
			for i, a := range r.Attempts {
				if a.At > ms(5000) && a.At < ms(6000) {
					r.Attempts[i].Started, r.Attempts[i].Done = ms(6000), ms(6010)
				}
			}
		}},
		"generator late in the fault alone": {Inconclusive, "1 % of the connections in sick began more than", func(_ *recorded, r *Record) { // 1 % of its connections, not of the run's
			for i := range r.from(ms(5000), 4) {
				r.Attempts[i].Started += ms(400)
				r.Attempts[i].Done += ms(400)
			}
		}},
		"generator stood still, few connections": {Inconclusive, "stood still", func(_ *recorded, r *Record) {
			for i := range r.from(ms(9000), 1) {
				r.Attempts[i].Started += ms(1500)
				r.Attempts[i].Done += ms(1500)
			}
		}},
		"generator a little late": {Inconclusive, "not comparable", func(_ *recorded, r *Record) { // what holds ">= 5" may be lateness
			for i := range r.Attempts {
				r.Attempts[i].Started += ms(30)
				r.Attempts[i].Done += ms(30)
			}
		}},
		"no baseline": {Inconclusive, "there is no baseline", func(_ *recorded, r *Record) {
			for i := range r.Attempts {
				r.Attempts[i].At += ms(4000)
			}
		}},
		"baseline broken": {Inconclusive, "before any fault", func(_ *recorded, r *Record) {
			for i := range 5 {
				r.Attempts[i].Pod, r.Attempts[i].Error = "", "reset"
			}
		}},
		"nobody answered":                  {Inconclusive, "no client was ever answered", func(_ *recorded, r *Record) { r.breakOff(0, ms(12000)) }},
		"nobody answered before the fault": {Inconclusive, "there is no baseline", func(_ *recorded, r *Record) { r.breakOff(0, ms(4000)) }},
		"nobody answered after it":         {Broken, "", func(_ *recorded, r *Record) { r.breakOff(ms(8000), ms(12000)) }},
		"logs not understood":              {Inconclusive, "logged 0 outbound connections", func(_ *recorded, r *Record) { r.Logged = nil }},
		"logs of a gateway lost":           {Inconclusive, "west-gw-1 logged 0 forwarded connections", func(_ *recorded, r *Record) { r.forget("west-gw-1", func(l *Lines) { l.Forward = 0 }) }},
		"logs of a sick pod's node lost":   {Inconclusive, "west-node-2 logged 0 inbound connections", func(_ *recorded, r *Record) { r.forget("west-node-2", func(l *Lines) { l.Inbound = 0 }) }},
		"logs of a client's node lost":     {Inconclusive, "east-node-1 logged 0 outbound connections", func(_ *recorded, r *Record) { r.forget("east-node-1", func(l *Lines) { l.Outbound = 0 }) }},
		"a gateway dropped lines":          {Inconclusive, "north-gw-1 lost 3 lines", func(_ *recorded, r *Record) { r.forget("north-gw-1", func(l *Lines) { l.Lost = 3 }) }},
		"a node proxy dropped lines":       {Inconclusive, "west-node-1 lost 1 lines", func(_ *recorded, r *Record) { r.forget("west-node-1", func(l *Lines) { l.Lost = 1 }) }},
		"injector's own doubt": {Inconclusive, "the injector", func(_ *recorded, r *Record) {
			r.Doubts = []string{"the injector lost its mind"}
		}},
		"a process crashed": {Broken, "", func(_ *recorded, r *Record) {
			r.Exits = []Exit{{At: ms(2000), Process: "west-gw-1", Status: "exit status 2"}}
		}},
		"a connection failed":  {Broken, "", func(_ *recorded, r *Record) { a := &r.Attempts[300]; a.Pod, a.Error = "", "reset" }},
		"an arm crashed":       {Inconclusive, "arm two did not run to its end", func(d *recorded, _ *Record) { d.arms = d.arms[:1] }},
		"no arm ran":           {Inconclusive, "did not run to its end", func(d *recorded, _ *Record) { d.arms = nil }},
		"nothing asserted":     {Inconclusive, "asserts nothing", func(d *recorded, _ *Record) { d.s.Assertions = nil }},
		"assertion unreadable": {Inconclusive, "was not measured", func(d *recorded, _ *Record) { d.s.Assertions[1].Bound = "about 0" }},
		"assertion on an empty phase": {Broken, "", func(_ *recorded, r *Record) {
			r.Outages[0].Heal, r.Outages[0].Healed = ms(12000), ms(12001)
			r.Outages[0].Fault.Until = ms(12000)
			for i, a := range r.Attempts {
				if a.Pod == "west-2" && a.At >= ms(8000) {
					r.Attempts[i].Pod = "west-1"
				}
			}
		}},
		"cuts without held connections": {Broken, "", func(_ *recorded, r *Record) {
			for i := range r.Attempts {
				r.Attempts[i].Hold = 0
			}
		}},
		"cuts with none held in the fault": {Broken, "", func(_ *recorded, r *Record) {
			for i, a := range r.Attempts {
				if a.At < ms(8000) && a.At+a.Hold >= ms(4000) {
					r.Attempts[i].Hold = 0
				}
			}
		}},
		"fault that healed at once": {Inconclusive, "victims answered 3 connections", func(_ *recorded, r *Record) { // a crossing of its first instants is left
			r.answerSick(ms(5000), 3)
		}},
		"sick pods without connections": {Broken, "", func(_ *recorded, r *Record) {
			for i, a := range r.Attempts {
				if a.At >= ms(4900) && a.At < ms(8100) {
					r.Attempts[i].Port = 1
				}
			}
		}},
		"latency of nothing": {Broken, "", func(_ *recorded, r *Record) {
			for i := range r.Attempts {
				r.Attempts[i].Pod, r.Attempts[i].Error = "", "reset"
			}
			r.Layout.Scenario.Assertions = r.Layout.Scenario.Assertions[5:]
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := recording(t)
			c.spoil(d, d.arms[1])
			r := d.judge()
			if r.Verdict == Held || r.Verdict != c.want && name != "latency of nothing" {
				t.Errorf("%s because of %q; want %s", r.Verdict, r.Reasons, c.want)
			}
			if !strings.Contains(strings.Join(r.Reasons, "\n"), c.why) {
				t.Errorf("because of %q; want %q", r.Reasons, c.why)
			}
		})
	}
}

// Every observation and every arm's faults are left out in turn.
func TestAnEmptyResultIsNotHeld(t *testing.T) {
	r := &Result{}
	if r.Judge(); r.Verdict == Held {
		t.Error("an empty result is held")
	}
	r = &Result{AsRun: mustParse(t, judged)}
	if r.Judge(); r.Verdict == Held {
		t.Error("a result without arms is held")
	}
	full := recording(t).judge()
	armless := *full.AsRun
	armless.Arms = nil
	r = &Result{AsRun: &armless}
	if r.Judge(); r.Verdict != Inconclusive || !strings.Contains(strings.Join(r.Reasons, "\n"), "no arm") {
		t.Errorf("a scenario without arms: %s because of %q", r.Verdict, r.Reasons)
	}
	for i := range full.Assertions {
		less := *full
		less.Assertions = slices.Delete(slices.Clone(full.Assertions), i, i+1)
		own := full.Assertions[i].Metric == "exits"
		if less.Judge(); less.Verdict == Held && !own {
			t.Errorf("held without the observation %s of arm %s", full.Assertions[i].Name, full.Assertions[i].Arm)
		}
	}
	for i := range full.Arms {
		less := *full
		less.Arms = slices.Clone(full.Arms)
		less.Arms[i].Faults = nil
		if less.Judge(); less.Verdict == Held {
			t.Errorf("held without the faults of arm %d", i)
		}
	}
}

func TestLatenciesAreNotComparableWhen(t *testing.T) {
	for want, spoil := range map[string]func(r *Record){
		"more than 30 ms late": func(r *Record) {
			for i := range r.Attempts {
				r.Attempts[i].Started += ms(30)
			}
		},
		"before any fault the p50 of the arms was 21 ms (two) against 10 ms (one), more than 2 times as long": func(r *Record) {
			for i := range r.Attempts {
				r.Attempts[i].Done += ms(11)
			}
		},
		"before any fault the p99 of the arms was 40 ms (two) against 10 ms (one), more than 2 times as long": func(r *Record) {
			for i := range r.Attempts {
				if i%10 == 0 {
					r.Attempts[i].Done += ms(30)
				}
			}
		},
	} {
		d := recording(t)
		d.s.Assertions = d.s.Assertions[:1] // none about latency: the verdict does not change
		spoil(d.arms[1])
		r := d.judge()
		if r.Verdict != Held {
			t.Errorf("%s: %s because of %q; want held: nothing else is wrong", want, r.Verdict, r.Reasons)
		}
		if r.Latencies.Comparable || !strings.Contains(strings.Join(r.Latencies.Why, "\n"), want) {
			t.Errorf("comparable %v because of %q; want %q", r.Latencies.Comparable, r.Latencies.Why, want)
		}
	}
}

// An upper bound that held although connections began late has held all the more.
func TestLatenessDoesNotDoubtAnUpperBoundThatHeld(t *testing.T) {
	for _, c := range []struct {
		bound string
		doubt bool
	}{{"< 100", false}, {"< 20", true}, {">= 5", true}, {">= 100", false}, {"== 40", true}} {
		d := recording(t)
		d.s.Assertions = []scenario.Assertion{{Name: "x", Metric: "latency_ms(q=p50)", Bound: c.bound}}
		for i := range d.arms[0].Attempts {
			d.arms[0].Attempts[i].Started += ms(30)
			d.arms[0].Attempts[i].Done += ms(30)
		}
		if o := d.arms[0].Evaluate()[0]; (o.Doubt != "") != c.doubt {
			t.Errorf("%s: observed %v, held %v, doubt %q; want doubt: %v", c.bound, *o.Observed, o.Held, o.Doubt, c.doubt)
		}
	}
}

func TestCrossings(t *testing.T) {
	const head = "kind: refuse, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}"
	conn := func(e Event) func(*Record) {
		e.Kind = Connection
		return func(r *Record) { r.Events = append(r.Events, e) }
	}
	attempt := func(a Attempt) func(*Record) {
		return func(r *Record) { r.Attempts = append(r.Attempts, a) }
	}
	west1, west2 := Try{Pod: "west-1"}, Try{Pod: "west-2"}
	for i, c := range []struct {
		fault string
		add   func(*Record)
		want  int
	}{
		{head, conn(Event{Direction: "inbound", Workload: "west-2", Port: 8080, Result: "refused", Started: ms(5000), At: ms(5001)}), 1},
		{head, conn(Event{Direction: "inbound", Workload: "west-2", Port: 8080, Result: "ok", Started: ms(3000), At: ms(5001)}), 0}, // it was made before
		{head, conn(Event{Direction: "inbound", Workload: "west-2", Port: 8080, Result: "refused", Started: ms(8500), At: ms(8501)}), 0},
		{head, conn(Event{Direction: "outbound", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(5000), At: ms(5001), Tried: []Try{west2}}), 1},
		{head, conn(Event{Direction: "outbound", Workload: "west-2", Port: 8080, Result: "ok", Started: ms(5000), At: ms(5001), Tried: []Try{west1}}), 0},
		{head, attempt(Attempt{Arrival: scenario.Arrival{At: ms(5000)}, Started: ms(5000), Done: ms(5001), Pod: "west-2"}), 0},
		{head, conn(Event{Direction: "outbound", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(2000), At: ms(5000), Tried: []Try{west2}}), 0}, // it may have tried before
		{head, conn(Event{Direction: "outbound", Workload: "west-2", Port: 8080, Result: "reset", Started: ms(2000), At: ms(5000)}), 0},                   // it was made before
		{head, conn(Event{Direction: "outbound", Workload: "west-2", Port: 8080, Result: "refused", Started: ms(5000), At: ms(5001)}), 1},
		{strings.Replace(head, "refuse", "silent", 1), conn(Event{Direction: "inbound", Workload: "west-2", Port: 8080, Result: "ok", Started: ms(5000), At: ms(9000)}), 1},
		{strings.Replace(head, "refuse", "silent", 1), conn(Event{Direction: "inbound", Workload: "west-2", Port: 8081, Result: "ok", Started: ms(5000), At: ms(9000)}), 0},
		{"kind: podKill, at: 4s, until: 8s, target: {network: west, names: [west-2]}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(3000), Hold: ms(2000)}, Started: ms(3000), Done: ms(3001), Pod: "west-2", CutAt: ms(4001), CutError: "reset"}), 1},
		{"kind: podKill, at: 4s, until: 8s, target: {network: west, names: [west-2]}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(3000)}, Started: ms(3000), Done: ms(3001), Pod: "west-2"}), 0},
		{"kind: gatewayKill, at: 4s, until: 8s, target: {network: west, gateway: 1}", conn(Event{Direction: "outbound", Gateway: "west-gw-1", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(3000), At: ms(4001)}), 1},
		{"kind: gatewayKill, at: 4s, until: 8s, target: {network: west, gateway: 1}", conn(Event{Direction: "outbound", Gateway: "west-gw-2", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(3000), At: ms(4001)}), 0},
		{"kind: gatewayKill, at: 4s, until: 8s, target: {network: west, gateway: 1}", conn(Event{Direction: "outbound", Gateway: "west-gw-2", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(5000), At: ms(5001), Tried: []Try{{Gateway: "west-gw-1"}}}), 1},
		{"kind: nodeproxyKill, at: 4s, until: 8s, target: {network: west, node: 2}", conn(Event{Direction: "forward", Process: "west-gw-1", Workload: "west-2", Port: 8080, Result: "unreachable", Started: ms(5000), At: ms(5001)}), 1},
		{"kind: nodeproxyKill, at: 4s, until: 8s, target: {network: west, node: 2}", conn(Event{Direction: "forward", Process: "west-gw-1", Workload: "west-1", Port: 8080, Result: "unreachable", Started: ms(5000), At: ms(5001)}), 0},
		{"kind: nodeproxyKill, at: 4s, until: 8s, target: {network: east, node: 1}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(5000)}, Started: ms(5000), Done: ms(5001), Error: "refused by the node proxy"}), 1},
		{"kind: freeze, at: 4s, until: 8s, target: {network: west, gateway: 1}", conn(Event{Direction: "forward", Process: "west-gw-1", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(3000), At: ms(9000)}), 1},
		{"kind: freeze, at: 4s, until: 8s, target: {network: west, gateway: 1}", conn(Event{Direction: "forward", Process: "west-gw-2", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(3000), At: ms(9000)}), 0},
		{"kind: freeze, at: 4s, until: 8s, target: {network: west, names: [west-2]}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(5000)}, Started: ms(5000), Done: ms(8100), Pod: "west-2"}), 1},
		{"kind: freeze, at: 4s, until: 8s, target: {network: west, node: 2}", conn(Event{Direction: "inbound", Process: "west-node-2", Workload: "west-2", Port: 8080, Result: "ok", Started: ms(5000), At: ms(9000)}), 1},
		{"kind: blackhole, at: 4s, until: 8s, target: {network: west, gateway: 1}", conn(Event{Direction: "outbound", Gateway: "west-gw-2", Workload: "west-1", Port: 8080, Result: "ok", Started: ms(5000), At: ms(5001)}), 0},
		{"kind: blackhole, at: 4s, until: 8s, target: {network: west, names: [west-2]}", conn(Event{Direction: "forward", Process: "west-gw-1", Workload: "west-2", Port: 8080, Result: "unreachable", Started: ms(5000), At: ms(5001)}), 1},
		{"kind: slow, delay: 1s, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(5000)}, Started: ms(5000), Done: ms(6000), Pod: "west-2"}), 1},
		{"kind: slow, delay: 1s, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(3900), Hold: ms(2000)}, Started: ms(3900), Done: ms(3901), Pod: "west-2"}), 0}, // made before
		{"kind: flap, down: 1s, up: 1s, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", conn(Event{Direction: "inbound", Workload: "west-2", Port: 8080, Result: "refused", Started: ms(6500), At: ms(6501)}), 1},
		{"kind: flap, down: 1s, up: 1s, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", conn(Event{Direction: "inbound", Workload: "west-2", Port: 8080, Result: "refused", Started: ms(5500), At: ms(5501)}), 0}, // it was up
		{"kind: federationCut, at: 4s, until: 8s, target: {networks: [west]}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(5000)}, Started: ms(5000), Done: ms(5001), Pod: "west-1"}), 1},
		{"kind: federationCut, at: 4s, until: 8s, target: {networks: [west]}", attempt(Attempt{Arrival: scenario.Arrival{At: ms(5000)}, Started: ms(5000), Done: ms(5001), Pod: "north-1"}), 0},
	} {
		text := strings.Replace(twoNetworks, head, c.fault, 1)
		if !strings.Contains(text, c.fault) {
			t.Fatal("the fault is not in the scenario")
		}
		r := small(t, text)
		if r.Outages[0].Fault.Kind == scenario.Flap {
			r.Outages[0].Downs = []Window{{From: ms(4000), To: ms(5000)}, {From: ms(6000), To: ms(7000)}}
		}
		c.add(r)
		if got := r.crossings(r.Outages[0]); got != c.want {
			t.Errorf("%d: %s: %d crossings, want %d (%s)", i, c.fault, got, c.want, fmt.Sprint(r.Attempts, r.Events))
		}
	}
}
