package measure

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Result measures everything that drill.json says about the arm.
func (r *Record) Result() ArmResult {
	s := r.Layout.Scenario
	out := ArmResult{
		Name: r.Arm.Name, Description: r.Arm.Description, Exchange: s.ExchangeOf(r.Arm),
		Attempts: len(r.Attempts), FailedBy: map[string]int{},
		LatencyMS:           r.latencies(r.window("run")),
		ToSickAfter1s:       r.toSickAfter1s(),
		CollateralEjections: int(collateralEjections(r, nil).Number),
		GatewayEjections:    int(gatewayEjections(r, nil).Number),
		Inconclusive:        r.Doubt(),
		SeriesStep:          bucketOf(s.Duration).Seconds(),
		Series:              r.series(),
		Beliefs:             r.beliefs(),
		News:                r.news(""),
		Faults:              []FaultResult{},
		Phases:              []Phase{},
		Endpoints:           []Answered{},
	}
	for _, a := range r.Attempts {
		if a.Failed() {
			out.Failed++
			out.FailedBy[a.Error]++
		}
		if a.Aborted != 0 {
			out.Aborted++
		}
		if a.Refused {
			out.Refused++
		}
	}
	out.Cuts = r.listCuts()
	out.Cut = len(out.Cuts)
	out.Endpoints = append(out.Endpoints, r.endpoints()...)
	for _, w := range r.Phases() {
		out.Phases = append(out.Phases, r.phase(w))
	}
	for _, o := range r.Outages {
		out.Faults = append(out.Faults, r.faultResult(o))
	}
	out.Events, out.EventsLeftOut = r.happenings()
	out.Generator = r.generator()
	out.Roles, out.Processes = byRole(r.Usage), r.Usage
	return out
}

// generator measures how well the schedule was kept, outside of the surge and in it.
func (r *Record) generator() (g Generator) {
	measure := func(late []float64) (g Generator) {
		if len(late) > 0 {
			g = Generator{Planned: len(late), LateP99MS: quantile("p99", late).Number, LateMaxMS: quantile("max", late).Number}
		}
		return g
	}
	g = measure(r.late(false, r.window("run")))
	if surge := measure(r.late(true, r.window("run"))); surge.Planned > 0 {
		g.Surge = &surge
	}
	if len(r.Attempts) > 0 {
		g.Planned = scenario.Planned(r.Layout.Scenario)
	}
	return g
}

// toSickAfter1s is to_sick as a plain count.
func (r *Record) toSickAfter1s() int {
	if v := toSick(r, nil).Number; v > 0 {
		return int(v)
	}
	return 0
}

// late returns by how many milliseconds each connection of the surge, or each
// other one, that was to begin in w began after its time.
func (r *Record) late(surge bool, w Window) []float64 {
	out := make([]float64, 0, len(r.Attempts))
	for _, a := range r.Attempts {
		if w.Has(a.At) && r.Layout.Scenario.Traffic.Surge.Has(a.At) == surge {
			out = append(out, millis(a.Started-a.At))
		}
	}
	return out
}

func (r *Record) latencies(w Window) Latencies {
	args := func(q string) map[string]string { return map[string]string{"q": q, "phase": w.Name} }
	return Latencies{finite(latency(r, args("p50")).Number), finite(latency(r, args("p99")).Number), finite(latency(r, args("max")).Number)}
}

func (r *Record) listCuts() (out []Cut) {
	for _, a := range r.cuts(func(Attempt) bool { return true }) {
		cause := r.causeOf(a)
		if cause == "" {
			cause = "unexplained"
		}
		out = append(out, Cut{At: a.CutAt.Seconds(), Client: r.Layout.Clients[a.Client].Name, Pod: a.Pod,
			Port: r.Layout.Scenario.Ports()[a.Port].Name, Gateway: a.Gateway, How: a.CutError, Cause: cause})
	}
	return out
}

func (r *Record) endpoints() (out []Answered) {
	phases := r.Phases()
	for i, port := range r.Layout.Scenario.Ports() {
		for _, p := range r.Layout.Pods {
			e := Answered{ID: p.Name, Endpoint: p.Endpoint, Network: p.Network, Node: p.Node, Port: port.Name, Target: port.Target, Phases: map[string]int{}}
			for _, a := range r.Attempts {
				if a.Pod != p.Name || a.Port != i {
					continue
				}
				e.Answered++
				for _, w := range phases {
					if w.Has(a.At) {
						e.Phases[w.Name]++
					}
				}
			}
			for _, o := range r.Outages {
				e.Victim = e.Victim || slices.Contains(o.Victims.Pods, p.Name) && slices.Contains(o.Victims.Ports, port.Target)
			}
			out = append(out, e)
		}
	}
	return out
}

func (r *Record) phase(w Window) Phase {
	args := map[string]string{"phase": w.Name}
	p := Phase{Name: w.Name, From: w.From.Seconds(), To: w.To.Seconds(), LatencyMS: r.latencies(w), Shares: map[string]map[string]float64{}}
	r.each(args, w, func(a Attempt) {
		p.Attempts++
		if a.Failed() {
			p.Failed++
		}
		if a.Aborted != 0 {
			p.Aborted++
		}
		if a.Refused {
			p.Refused++
		}
	})
	for _, n := range r.Layout.Scenario.Networks {
		if n.Pods == 0 {
			continue
		}
		p.Shares[n.Name] = map[string]float64{}
		for _, port := range r.Layout.Scenario.Ports() {
			if v := finite(share(r, map[string]string{"network": n.Name, "port": port.Name, "phase": w.Name}).Number); v != nil {
				p.Shares[n.Name][port.Name] = *v
			}
		}
	}
	return p
}

func (r *Record) faultResult(o Outage) FaultResult {
	f := FaultResult{Name: o.Fault.Name, Kind: o.Fault.Kind, Pods: o.Victims.Pods, Process: o.Victims.Process,
		Begin: o.Begin.Seconds(), Effect: o.Effect.Seconds(), Proof: o.Proof, Crossed: r.crossings(o), Downs: len(o.Downs)}
	for _, p := range r.Layout.Scenario.Ports() {
		if slices.Contains(o.Victims.Ports, p.Target) {
			f.Ports = append(f.Ports, p.Name)
		}
	}
	f.Heal, f.Healed = seconds(o.Heal), seconds(o.Healed)
	return f
}

func seconds(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	v := d.Seconds()
	return &v
}
