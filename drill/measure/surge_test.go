package measure

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// surging is a scenario without a fault and with 20 times the connections from
// 4 s to 8 s of 12 s.
const surging = `
name: surging
duration: 12s
networks:
  - {name: east, nodes: 2}
  - {name: west, pods: 4}
services:
  - name: echo
    ports: [{name: A, port: 8080}, {name: B, port: 8081}]
clients: [{network: east}]
traffic: {rate: 50, abort: 0.2, hold: {fraction: 0.5, for: 2s}, surge: {at: 4s, until: 8s, rate: 1000}}
arms: [{name: one}]
assertions:
  - {name: none fails before, metric: failed(phase=baseline), bound: "== 0"}
  - {name: none fails in it, metric: failed(phase=surge), bound: "== 0"}
  - {name: none fails from 2 s after it, metric: "failed(phase=healed, after=2s)", bound: "== 0"}
  - {name: some are refused, metric: refused_by_overload(phase=surge), bound: "> 0"}
  - {name: many are served, metric: answered_per_second(phase=surge), bound: ">= 300"}
  - {name: in time, metric: "latency_ms(q=p99, phase=surge)", bound: "<= 100"}
  - {name: the healthy stay in, metric: collateral_ejections, bound: "== 0"}
`

// overloaded is a sound record of surging: of the surge two of three are refused
// after 500 ms, and the node proxy says so; what is broken off is broken off.
func overloaded(t *testing.T) *recorded {
	t.Helper()
	s := mustParse(t, surging)
	r := whole(t, s, s.Arms[0])
	for i := range r.Attempts {
		a := &r.Attempts[i]
		if a.Abort.How != "" {
			a.Aborted = a.Done
		}
		if !s.Traffic.Surge.Has(a.At) || i%3 == 0 {
			continue
		}
		a.Pod, a.Error, a.Done = "", "reset", a.At+ms(500)
		r.Events = append(r.Events, Event{At: a.Done + ms(1), Process: r.Layout.Clients[a.Client].Node, Kind: Connection, Direction: "outbound", Result: "overload", Started: a.At + ms(1)})
	}
	r.Arrange()
	return &recorded{s: s, arms: []*Record{r}}
}

func TestNoMutationOfASoundSurgeIsHeld(t *testing.T) {
	sound := overloaded(t).judge()
	if sound.Verdict != Held || sound.Arms[0].Failed != 0 || sound.Arms[0].Refused < 2000 {
		t.Fatalf("the sound record: %s because of %q, %d failed, %d refused, %+v", sound.Verdict, sound.Reasons, sound.Arms[0].Failed, sound.Arms[0].Refused, sound.Assertions)
	}
	inSurge := func(r *Record, f func(i int, a *Attempt)) {
		for i := range r.Attempts {
			if a := &r.Attempts[i]; a.At >= ms(4000) && a.At < ms(8000) {
				f(i, a)
			}
		}
	}
	for name, c := range map[string]struct {
		want  Verdict
		why   string
		spoil func(r *Record)
	}{
		"nobody is overloaded": {Inconclusive, "the surge overloaded nobody", func(r *Record) {
			inSurge(r, func(_ int, a *Attempt) { a.Pod, a.Error, a.Done = "west-1", "", a.At+ms(10) })
		}},
		"hardly anybody is": {Inconclusive, "the surge overloaded nobody", func(r *Record) {
			inSurge(r, func(i int, a *Attempt) {
				if i%200 != 1 {
					a.Pod, a.Error, a.Done = "west-1", "", a.At+ms(10)
				}
			})
		}},
		"the surge is offered late": {Inconclusive, "too late to offer the surge", func(r *Record) {
			inSurge(r, func(_ int, a *Attempt) { a.Started += ms(600); a.Done += ms(600) })
		}},
		"the surge is not offered": {Inconclusive, "nothing is known of", func(r *Record) {
			inSurge(r, func(_ int, a *Attempt) { *a = Attempt{Arrival: a.Arrival} })
		}},
		"the surge is left out": {Inconclusive, "of the", func(r *Record) {
			r.Attempts = slices.DeleteFunc(r.Attempts, func(a Attempt) bool { return a.At >= ms(4000) && a.At < ms(8000) })
		}},
		"the others are late": {Inconclusive, "fell behind", func(r *Record) {
			for i := range r.Attempts {
				if a := &r.Attempts[i]; a.At >= ms(8000) {
					a.Started += ms(300)
					a.Done += ms(300)
				}
			}
		}},
		"resets without a line": {Inconclusive, "the surge overloaded nobody", func(r *Record) { r.Events = nil }},
		"one line is missing":   {Broken, "", func(r *Record) { r.Events = r.Events[1:] }},
		"lines of another node proxy": {Inconclusive, "the surge overloaded nobody", func(r *Record) {
			for i := range r.Events {
				r.Events[i].Process = "west-node-1"
			}
		}},
		"lines of another result": {Inconclusive, "the surge overloaded nobody", func(r *Record) {
			for i := range r.Events {
				r.Events[i].Result = "connect"
			}
		}},
		"lines of another time": {Broken, "", func(r *Record) {
			for i := range r.Events {
				r.Events[i].Started += ms(1000)
			}
		}},
		"timeouts": {Broken, "", func(r *Record) {
			inSurge(r, func(i int, a *Attempt) {
				if a.Error != "" {
					a.Error, a.Done = "timeout", a.At+ms(5000)
				}
			})
		}},
		"a refusal that comes too late": {Broken, "", func(r *Record) {
			inSurge(r, func(i int, a *Attempt) {
				if a.Error != "" && i%100 == 1 {
					a.Done = a.Started + maxRefusal + 1
				}
			})
		}},
		"a refusal before the surge": {Broken, "", func(r *Record) { refuseAt(r, ms(1000)) }},
		"a refusal long after it":    {Broken, "", func(r *Record) { refuseAt(r, ms(10500)) }},
		"few are served": {Broken, "", func(r *Record) {
			inSurge(r, func(i int, a *Attempt) {
				if a.Error == "" && i%2 == 0 {
					a.Pod, a.Error, a.Done = "", "reset", a.At+ms(500)
					r.Events = append(r.Events, Event{At: a.Done, Process: r.Layout.Clients[a.Client].Node, Kind: Connection, Direction: "outbound", Result: "overload", Started: a.At})
				}
			})
		}},
		"a pod is ejected": {Broken, "", func(r *Record) {
			r.Events = append(r.Events, Event{At: ms(6000), Process: "east-node-1", Kind: OutlierChanged, Edge: "ejected", Scope: "endpoint", Endpoint: r.Layout.Pods[0].Endpoint, Port: 8080})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := overloaded(t)
			c.spoil(d.arms[0])
			d.arms[0].Arrange()
			r := d.judge()
			if r.Verdict != c.want || !strings.Contains(strings.Join(r.Reasons, "\n"), c.why) {
				t.Errorf("%s because of %q; want %s because of %q", r.Verdict, r.Reasons, c.want, c.why)
			}
		})
	}
}

// refuseAt has the first connection from t on refused for overload.
func refuseAt(r *Record, t time.Duration) {
	i := slices.IndexFunc(r.Attempts, func(a Attempt) bool { return a.At >= t })
	a := &r.Attempts[i]
	a.Pod, a.Error, a.Done, a.Aborted = "", "reset", a.At+ms(500), 0
	r.Events = append(r.Events, Event{At: a.Done, Process: r.Layout.Clients[a.Client].Node, Kind: Connection, Direction: "outbound", Result: "overload", Started: a.At})
}

func TestASurgeRaisesTheRateWhileItLasts(t *testing.T) {
	for _, kind := range []string{"poisson", "uniform"} {
		for seed := range uint64(20) {
			s := mustParse(t, surging)
			s.Seed, s.Traffic.Arrivals = seed, kind
			var in, out, special int
			last := time.Duration(0)
			for _, a := range scenario.Schedule(s, 2) {
				if a.At < last {
					t.Fatalf("%s, seed %d: %v after %v", kind, seed, a.At, last)
				}
				last = a.At
				if s.Traffic.Surge.Has(a.At) {
					in++
					if a.Hold != 0 || a.Abort.How != "" {
						special++
					}
				} else {
					out++
				}
			}
			if in < 3700 || in > 4300 || out < 320 || out > 480 || special > 0 { // 4000, sd 63; 400, sd 20
				t.Errorf("%s, seed %d: %d in the surge, %d of them held or broken off, %d others; want about 4000, 0 and 400", kind, seed, in, special, out)
			}
		}
	}
}

func TestBeforeASurgeTheScheduleIsAsWithoutOne(t *testing.T) {
	with, without := mustParse(t, surging), mustParse(t, surging)
	without.Traffic.Surge = scenario.Surge{}
	a, b := scenario.Schedule(with, 2), scenario.Schedule(without, 2)
	for i := range b {
		if b[i].At >= with.Traffic.Surge.At {
			return
		}
		if a[i] != b[i] {
			t.Fatalf("arrival %d is %+v with a surge, %+v without", i, a[i], b[i])
		}
	}
}

func TestPhasesOfASurge(t *testing.T) {
	s := mustParse(t, surging)
	r := &Record{Layout: scenario.NewLayout(s, 99)}
	want := []Window{{"baseline", 0, ms(4000)}, {"surge", ms(4000), ms(8000)}, {"healed", ms(8000), ms(12000)}}
	if got := r.Phases(); !slices.Equal(got, want) {
		t.Errorf("without a fault: %v, want %v", got, want)
	}
	r.Outages = []Outage{{Fault: scenario.Fault{Name: "sick"}, Begin: ms(7000), Effect: ms(7001), Heal: ms(9000), Healed: ms(9001)}}
	want = []Window{{"baseline", 0, ms(4000)}, {"fault", ms(4000), ms(9000)}, {"healed", ms(9000), ms(12000)}}
	if got := r.Phases(); !slices.Equal(got, want) {
		t.Errorf("with a fault: %v, want %v", got, want)
	}
	if got := r.window("surge"); got != (Window{"surge", ms(4000), ms(8000)}) {
		t.Errorf("the surge: %v", got)
	}
}

// Match is compared with a search of the largest matching.
func TestMatchMatchesAsManyAsCanBe(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		attempts := make([]*Attempt, rng.IntN(8))
		for i := range attempts {
			started := ms(float64(rng.IntN(100)))
			attempts[i] = &Attempt{Started: started, Done: started + ms(float64(rng.IntN(50)))}
		}
		slices.SortFunc(attempts, func(a, b *Attempt) int { return cmp.Compare(a.Started, b.Started) })
		instants := make([]time.Duration, rng.IntN(8))
		for i := range instants {
			instants[i] = ms(float64(rng.IntN(140)))
		}
		slices.Sort(instants)
		match(attempts, instants)
		got := 0
		for _, a := range attempts {
			if a.Refused {
				got++
			}
		}
		if want := most(attempts, instants, 0); got != want {
			t.Errorf("seed %d: %d matched, %d can be", seed, got, want)
		}
	}
}

// most is the size of the largest matching; used is a set of attempts.
func most(attempts []*Attempt, instants []time.Duration, used uint) (n int) {
	if len(instants) == 0 {
		return 0
	}
	n = most(attempts, instants[1:], used)
	for i, a := range attempts {
		if used&(1<<i) == 0 && a.Started-logSlack <= instants[0] && instants[0] <= a.Done+logSlack {
			n = max(n, 1+most(attempts, instants[1:], used|1<<i))
		}
	}
	return n
}

func TestMistakesInASurge(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"at: 4s", "at: 0s", `surging.yaml:11: traffic.surge.at: 0s: must be at least 1s, so that there is a baseline`},
		{"at: 4s, ", "", `traffic.surge.at: is missing: must be at least 1s`},
		{"until: 8s", "until: 3s", `surging.yaml:11: traffic.surge.until: 3s: must be after at (4s)`},
		{"until: 8s", "until: 13s", `traffic.surge.until: 13s: is after the end of the drill: duration is 12s`},
		{"until: 8s", "until: 40s", `traffic.surge.until: 40s: must be at most 30s after at (4s)`},
		{"rate: 1000", "rate: 50", `traffic.surge.rate: 50: must be above traffic.rate (50) and at most 20000`},
		{"rate: 1000", "rate: 20001", `traffic.surge.rate: 20001: must be above traffic.rate (50) and at most 20000`},
		{"rate: 1000", "rate: .nan", `surging.yaml:11`},
		{", rate: 1000", "", `traffic.surge.rate: is missing: must be above traffic.rate`},
		{"rate: 1000", "rate: 4000", `traffic.surge.rate: 4000: with a timeout of 5s up to 20000 connections wait for an answer at once; at most 16000 may: lower the rate or traffic.timeout`},
		{"at: 4s, until: 8s, rate: 1000", "", `traffic.surge.at: is missing`},
		{"surge: {at", "surge: {form", `unknown key`},
		{", surge: {at: 4s, until: 8s, rate: 1000}", "", `phase=surge: the scenario has none of that name: use one of run, baseline, fault, healed`},
		{"after=2s", "after=soon", `after=soon: write a duration`},
	} {
		text := strings.Replace(surging, c.old, c.new, 1)
		if text == surging {
			t.Fatalf("%q is not in the scenario", c.old)
		}
		if _, err := scenario.Parse("surging.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s:\n got: %v\nwant: %s", c.new, err, c.want)
		}
	}
}
