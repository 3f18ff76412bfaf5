package measure

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// story is small with the canned logs and answers: 10 per second on each port,
// west-1 and west-3 and west-4 and both north pods in turn on A while west-2 is
// sick, and everybody before and after and on B.
func story(t *testing.T) *Record {
	t.Helper()
	r := small(t, twoNetworks)
	data, err := os.ReadFile("testdata/story.log")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(data)) {
		process, text, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		if e, ok := ParseLine(process, []byte(text), zero); ok {
			r.Events = append(r.Events, e)
		}
	}
	all, well := []string{"west-1", "west-2", "west-3", "west-4", "north-1", "north-2"}, []string{"west-1", "west-3", "west-4", "north-1", "north-2"}
	n := 0
	for at := time.Duration(0); at < r.Layout.Scenario.Duration; at += ms(50) {
		list := all
		port := n % 2
		if port == 0 && at >= ms(4000) && at < ms(8150) {
			list = well
		}
		r.answer(at, list[n/2%len(list)], port)
		n++
	}
	r.Arrange()
	return r
}

func measure(t *testing.T, r *Record, text string) Value {
	t.Helper()
	e, err := scenario.ParseExpr(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if err := e.Check(r.Layout.Scenario); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return r.Measure(e)
}

func TestMetricsOfTheCannedStory(t *testing.T) {
	r := story(t)
	for text, want := range map[string]float64{
		"attempts":                                240,
		"attempts(port=A)":                        120,
		"attempts(phase=baseline)":                80,
		"failed":                                  0,
		"failed_fraction(phase=sick)":             0,
		"cut":                                     0,
		"latency_ms":                              10,
		"latency_ms(q=p50, phase=fault, port=B)":  10,
		"to_sick":                                 1, // 6.4 s; 4.4 s is too soon, 8.5 s is healed, port B is well
		"to_sick(after=0s)":                       3,
		"to_sick(after=3s, fault=sick)":           0,
		"last_to_sick_ms(fault=sick)":             2399,
		"collateral_ejections":                    3 + 1 + 2 + 1,
		"gateway_ejections":                       1,
		"ejections(fault=sick)":                   4, // witness, two gateways, and the pod's other port
		"exclude_ms(q=median)":                    2,
		"exclude_ms":                              20,
		"known_ms(q=p50)":                         6,
		"known_ms":                                math.Inf(1), // east-node-2 never knew
		"known_healed_ms":                         210,         // east-node-2 never knew that it was sick
		"heal_ms":                                 510,         // first A answer of west-2 after 8 s
		"share(network=west, phase=baseline)":     0.7,
		"share(network=west, port=A, phase=sick)": 17. / 29,
		"ratio(network=west, to=north, port=A, phase=fault)":          1.5,
		"capacity_error(network=west, to=north, port=A, phase=fault)": 0,
	} {
		if got := measure(t, r, text); math.Abs(got.Number-want) > 1e-9 && !(math.IsInf(got.Number, 1) && math.IsInf(want, 1)) {
			t.Errorf("%s: got %v (%s), want %v", text, got.Number, got.Note, want)
		}
	}
	if got := measure(t, r, "victims_share(fault=sick, port=B)").Number; got < 0.8 || got > 1.2 {
		t.Errorf("victims_share: got %v, want about 1", got)
	}
	if got := measure(t, r, "known_ms").Note; !strings.Contains(got, "1 never") {
		t.Errorf("known_ms says %q, want it to say that one never knew", got)
	}
}

func TestResultOfTheCannedStory(t *testing.T) {
	a := story(t).Result()
	a.Series, a.Endpoints = a.Series[:2], a.Endpoints[:3] // the rest is more of the same
	got, err := json.MarshalIndent(a, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/story.json", append(got, '\n'))
}

func TestQuantileIsTheNearestRank(t *testing.T) {
	var v []float64
	for i := range 100 {
		v = append(v, float64(100-i))
	}
	for q, want := range map[string]float64{"p50": 50, "median": 50, "p90": 90, "p99": 99, "max": 100, "": 100} {
		if got := quantile(q, v).Number; got != want {
			t.Errorf("%s of 1 to 100: got %v, want %v", q, got, want)
		}
	}
	if got := quantile("p50", nil).Number; !math.IsNaN(got) {
		t.Errorf("p50 of nothing: got %v, want not a number", got)
	}
}

func TestCutsAreListedWithTheirCause(t *testing.T) {
	text := strings.Replace(twoNetworks, "kind: refuse, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", "kind: gatewayKill, at: 4s, until: 8s, target: {network: west, gateway: 1}", 1)
	r := small(t, text)
	cutAt := func(t time.Duration, pod, gateway string) {
		r.answer(ms(3000), pod, 0)
		a := &r.Attempts[len(r.Attempts)-1]
		a.Hold, a.CutAt, a.CutError, a.Gateway = ms(2000), t, "reset", gateway
	}
	cutAt(ms(4002), "west-1", "west-gw-1")
	cutAt(ms(4002), "west-2", "")          // it may have been through it
	cutAt(ms(4002), "west-3", "west-gw-2") // it was not
	cutAt(ms(4002), "north-1", "")         // another network's gateway
	cutAt(ms(3900), "west-4", "")          // before the fault
	got := r.Result()
	if got.Cut != 5 || len(got.Cuts) != 5 {
		t.Fatalf("cut: got %d with %d listed, want 5", got.Cut, len(got.Cuts))
	}
	for i, want := range []string{"sick: killed west-gw-1", "sick: killed west-gw-1", "unexplained", "unexplained", "unexplained"} {
		if got.Cuts[i].Cause != want {
			t.Errorf("cut of %s: cause %q, want %q", got.Cuts[i].Pod, got.Cuts[i].Cause, want)
		}
	}
	if n := cutUnexplained(r, nil).Number; n != 3 {
		t.Errorf("cut_unexplained: got %v, want 3", n)
	}
	if got.Failed != 0 {
		t.Errorf("failed: got %d, want 0: a cut connection is no failed one", got.Failed)
	}
}

func TestUneventfulConnectionsAreNotKept(t *testing.T) {
	l := small(t, twoNetworks).Layout
	conn := func(direction, pod, result string, lived float64) Event {
		return Event{Kind: Connection, Direction: direction, Workload: pod, Result: result, Started: ms(1000), At: ms(1000 + lived)}
	}
	for want, list := range map[bool][]Event{
		true: {{Kind: OutlierChanged}, {Kind: Known}, conn("inbound", "west-1", "refused", 1), conn("inbound", "west-2", "ok", 5), conn("forward", "west-1", "unreachable", 5),
			conn("outbound", "west-1", "ok", 500)},
		false: {{Kind: AttemptFailed}, conn("inbound", "west-1", "ok", 5), conn("outbound", "west-2", "ok", 5), conn("forward", "west-2", "ok", 5)},
	} {
		for _, e := range list {
			if got := Tells(l, e); got != want {
				t.Errorf("%s %s %s %s: kept %v, want %v", e.Kind, e.Direction, e.Workload, e.Result, got, want)
			}
		}
	}
}

func TestCutConnectionsFindTheirGatewayInTheLogs(t *testing.T) {
	r := small(t, twoNetworks)
	for i, pod := range []string{"west-1", "west-3"} {
		r.answer(ms(3000+float64(i)), pod, 0)
		a := &r.Attempts[i]
		a.Hold, a.CutAt, a.CutError = ms(2000), ms(4002), "reset"
	}
	line := func(process, direction, trace, pod string, started, at float64) {
		r.Events = append(r.Events, Event{At: ms(at), Process: process, Kind: Connection, Direction: direction, Trace: trace, Workload: pod, Port: 8080, Started: ms(started)})
	}
	line("east-node-1", "outbound", "other", "west-1", 3300, 4001) // began later
	line("east-node-1", "outbound", "short", "west-1", 3000, 3010) // ended earlier
	line("east-node-1", "outbound", "mine", "west-1", 3002, 4003)
	line("west-gw-2", "forward", "mine", "west-1", 3003, 4003)
	line("west-gw-1", "forward", "other", "west-1", 3300, 4001)
	line("east-node-1", "outbound", "lost", "west-3", 3002, 4003) // its gateway logged nothing
	r.Arrange()
	for i, want := range []string{"west-gw-2", ""} {
		if got := r.Attempts[i].Gateway; got != want {
			t.Errorf("connection to %s: through %q, want %q", r.Attempts[i].Pod, got, want)
		}
	}
}

func TestNetworkWithoutALivingGatewayHasNoCapacity(t *testing.T) {
	text := strings.Replace(twoNetworks, "kind: refuse, at: 4s, until: 8s, target: {network: west, names: [west-2], port: A}", "kind: gatewayKill, at: 4s, until: 8s, target: {network: north, gateway: 1}", 1)
	r := small(t, text)
	p := r.Layout.Scenario.Ports()[0]
	if got := r.capacity("north", p, Window{From: ms(5000), To: ms(7000)}); got != 0 {
		t.Errorf("north while its only gateway is dead: got %v, want 0", got)
	}
	if got := r.capacity("west", p, Window{From: ms(5000), To: ms(7000)}); got != 4 {
		t.Errorf("west: got %v, want 4", got)
	}
	if got := r.capacity("north", p, Window{From: ms(7000), To: ms(9001)}); math.Abs(got-1) > .05 {
		t.Errorf("north, half of the time: got %v, want about 1", got)
	}
}

// What the sink of a process says about lines that it dropped must be understood,
// and connections through a gateway are counted by what others wrote.
func TestLinesAreCountedByProcess(t *testing.T) {
	logged := map[string]Lines{}
	for _, l := range [][2]string{
		{"east-node-1", `{"message":"connection","direction":"outbound","gateway":"west-gw-1","result":"ok"}`},
		{"east-node-1", `{"message":"connection","direction":"outbound","gateway":"west-gw-1","result":"reset"}`},
		{"east-node-1", `{"message":"connection","direction":"outbound","gateway":"west-gw-1","result":"tunnel_lost"}`},
		{"west-gw-1", `{"message":"tunnel","direction":"forward","result":"ended"}`},
		{"west-node-1", `{"message":"connection","direction":"inbound","result":"ok"}`},
		{"west-node-1", `{"message":"known"}`},
		{"west-node-1", `{"message":"log lines lost","lines":3}`},
	} {
		e, ok := ParseLine(l[0], []byte(l[1]), zero)
		if !ok {
			t.Fatalf("not understood: %s", l[1])
		}
		CountLine(logged, e)
	}
	want := map[string]Lines{"east-node-1": {Outbound: 3}, "west-gw-1": {Forward: 1, Through: 1}, "west-node-1": {Inbound: 1, Lost: 3}}
	if !maps.Equal(logged, want) {
		t.Errorf("got %+v, want %+v", logged, want)
	}
}

func TestWhatProcessesTookIsSummedUpByRole(t *testing.T) {
	r := small(t, twoNetworks)
	r.Usage = []Usage{
		{Process: "east-gw-1", Role: RoleGateway, SentPerSecond: new(100.), ReceivedPerSecond: new(20.), ResidentBytes: 30},
		{Process: "west-gw-1", Role: RoleGateway, SentPerSecond: new(300.), ReceivedPerSecond: new(0.), ResidentBytes: 10},
		{Process: "west-gw-2", Role: RoleGateway, ResidentBytes: 20}, // started anew
		{Process: "east-node-1", Role: RoleNodeProxy, SentPerSecond: new(1.), ReceivedPerSecond: new(2.), ResidentBytes: 5},
	}
	for text, want := range map[string]float64{
		"control_bytes_per_second(role=gateway)":           300,
		"control_bytes_per_second(role=gateway, q=median)": 120,
		"control_bytes_per_second(role=nodeproxy)":         3,
	} {
		if got := measure(t, r, text).Number; got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
	roles := r.Result().Roles
	if len(roles) != 2 || roles[0].Processes != 3 || *roles[0].Control.Max != 300 || *roles[0].Resident.Median != 20 || roles[1].Processes != 1 {
		t.Errorf("by role: %+v", roles)
	}
}
