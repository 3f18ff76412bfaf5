package measure

import (
	"fmt"
	"math"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Verdict is what a drill came to.
type Verdict string

// The verdicts. Inconclusive wins over broken: what was not tested is not known.
const (
	Held         Verdict = "held"
	Broken       Verdict = "broken"
	Inconclusive Verdict = "inconclusive"
)

// Schema names the shape of drill.json.
const Schema = "isthmus.drill/v1"

// Result is drill.json. Times of day are RFC 3339; all other times are seconds
// since the first instant of the arm's traffic.
type Result struct {
	Schema      string             `json:"schema"`
	Scenario    string             `json:"scenario"`
	Description string             `json:"description,omitempty"`
	Seed        uint64             `json:"seed"`
	Verdict     Verdict            `json:"verdict"`
	Reasons     []string           `json:"reasons,omitempty"` // why inconclusive
	Started     time.Time          `json:"started"`
	Finished    time.Time          `json:"finished"`
	Environment Environment        `json:"environment"`
	AsRun       *scenario.Scenario `json:"as_run"`
	Arms        []ArmResult        `json:"arms"`
	Assertions  []Observation      `json:"assertions"`
	Latencies   Comparison         `json:"latencies"`
}

// Environment is where the drill ran.
type Environment struct {
	Version   string `json:"version"`
	Go        string `json:"go"`
	OS        string `json:"os"`
	CPUs      int    `json:"cpus"`
	Addresses string `json:"addresses"`
}

// Observation is one assertion and what was seen.
type Observation struct {
	Arm      string   `json:"arm"`
	Name     string   `json:"name"`
	Metric   string   `json:"metric"`
	Bound    string   `json:"bound"`
	Observed *float64 `json:"observed"` // null: nothing to measure, or never
	Note     string   `json:"note,omitempty"`
	Held     bool     `json:"held"`
	// Unmeasured is whether there was nothing to measure, so that Held says nothing of a run
	// that is inconclusive.
	Unmeasured bool `json:"unmeasured,omitempty"`
	// Doubt is why Held says nothing: the verdict is then inconclusive.
	Doubt string `json:"doubt,omitempty"`
}

// Latencies are milliseconds from intended start to first answer; null without
// an answer.
type Latencies struct {
	P50 *float64 `json:"p50"`
	P99 *float64 `json:"p99"`
	Max *float64 `json:"max"`
}

// ArmResult is what one arm showed.
type ArmResult struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Exchange    string `json:"exchange"`
	Attempts    int    `json:"attempts"`
	Failed      int    `json:"failed"`
	Aborted     int    `json:"aborted,omitempty"` // by clients, on purpose
	Refused     int    `json:"refused_by_overload,omitempty"`
	Cut         int    `json:"cut"`
	Cuts        []Cut  `json:"cuts,omitempty"`
	// FailedBy counts failures by how the client saw them.
	FailedBy            map[string]int `json:"failed_by,omitempty"`
	LatencyMS           Latencies      `json:"latency_ms"`
	ToSickAfter1s       int            `json:"to_sick_after_1s"`
	CollateralEjections int            `json:"collateral_ejections"`
	GatewayEjections    int            `json:"gateway_ejections"`
	Endpoints           []Answered     `json:"endpoints"`
	Phases              []Phase        `json:"phases"`
	Faults              []FaultResult  `json:"faults"`
	SeriesStep          float64        `json:"series_step"`
	Series              []Bucket       `json:"series"`
	Beliefs             []Belief       `json:"beliefs"`
	News                []News         `json:"news"`
	Events              []Happening    `json:"events"`
	EventsLeftOut       int            `json:"events_left_out,omitempty"`
	Generator           Generator      `json:"generator"`
	Roles               []RoleUsage    `json:"roles,omitempty"`     // what processes took, by role
	Processes           []Usage        `json:"processes,omitempty"` // and each
	Inconclusive        []string       `json:"inconclusive,omitempty"`
	Kept                string         `json:"kept,omitempty"` // folder of configs and logs
}

// Generator is how well the arrival schedule was kept.
type Generator struct {
	Planned   int     `json:"planned"` // connections of the schedule
	LateP99MS float64 `json:"late_p99_ms"`
	LateMaxMS float64 `json:"late_max_ms"`
	// Surge is the same of the surge's connections, which the others do not count.
	Surge *Generator `json:"surge,omitempty"`
}

// Cut is a connection that broke after its first answer though the client had
// not broken it off.
type Cut struct {
	At      float64 `json:"at"`
	Client  string  `json:"client"`
	Pod     string  `json:"pod"`
	Port    string  `json:"port"`
	Gateway string  `json:"gateway,omitempty"`
	How     string  `json:"how"`
	Cause   string  `json:"cause"`
}

// Answered is how many first exchanges a pod's port answered, in all and by phase.
type Answered struct {
	ID       string         `json:"id"`
	Endpoint string         `json:"endpoint"`
	Network  string         `json:"network"`
	Node     string         `json:"node"`
	Port     string         `json:"port"`
	Target   uint16         `json:"target_port"`
	Answered int            `json:"answered"`
	Phases   map[string]int `json:"phases"`
	Victim   bool           `json:"victim,omitempty"` // of a fault, on this port
}

// Phase is one span of the arm.
type Phase struct {
	Name      string    `json:"name"`
	From      float64   `json:"from"`
	To        float64   `json:"to"`
	Attempts  int       `json:"attempts"`
	Failed    int       `json:"failed"`
	Aborted   int       `json:"aborted,omitempty"`
	Refused   int       `json:"refused_by_overload,omitempty"`
	LatencyMS Latencies `json:"latency_ms"`
	// Shares is network → port → share of the port's answers, settled.
	Shares map[string]map[string]float64 `json:"shares"`
}

// FaultResult is one fault as it happened.
type FaultResult struct {
	Name    string        `json:"name"`
	Kind    scenario.Kind `json:"kind"`
	Pods    []string      `json:"pods,omitempty"`
	Ports   []string      `json:"ports,omitempty"`
	Process string        `json:"process,omitempty"`
	Begin   float64       `json:"begin"`
	Effect  float64       `json:"effect"`
	Heal    *float64      `json:"heal"`
	Healed  *float64      `json:"healed"`
	Proof   string        `json:"proof"`
	// Crossed is how many client connections are known to have crossed what the
	// fault hit while it was ill: at least so many.
	Crossed int `json:"crossed"`
	Downs   int `json:"downs,omitempty"` // of a flap: how often it refused
}

// Evaluate measures every assertion of the scenario on the record's arm, and
// adds the one that every arm has: no process ended by itself.
func (r *Record) Evaluate() []Observation {
	var out []Observation
	for _, a := range r.Layout.Scenario.Assertions {
		if a.Arm != "" && a.Arm != r.Arm.Name {
			continue
		}
		e, err := scenario.ParseExpr(a.Metric)
		b, berr := scenario.ParseBound(a.Bound)
		if err != nil || berr != nil {
			continue // validation has refused it before
		}
		v := r.Measure(e)
		o := Observation{Arm: r.Arm.Name, Name: a.Name, Metric: a.Metric, Bound: b.String(),
			Observed: finite(v.Number), Note: v.Note, Held: !math.IsNaN(v.Number) && b.Holds(v.Number), Unmeasured: math.IsNaN(v.Number)}
		if e.Name == "latency_ms" {
			o.Doubt = r.doubtLatency(e.Args, b, o.Held)
		}
		out = append(out, o)
	}
	n := float64(len(r.Exits))
	alive := Observation{Arm: r.Arm.Name, Name: "no process ends by itself", Metric: "exits", Bound: "== 0", Observed: &n, Held: n == 0}
	for _, x := range r.Exits {
		alive.Note += fmt.Sprintf("%s at %.2f s: %s; ", x.Process, x.At.Seconds(), x.Status)
	}
	return append(out, alive)
}

// finite returns v, or nil for what JSON cannot say.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
