package report

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

func result(t *testing.T) *measure.Result {
	t.Helper()
	r := small(t, twoNetworks+"assertions: [{metric: failed, bound: '== 0'}]")
	answer(r, ms(5000), "west-1", 0)
	r.Layout.Scenario.Description = "</script><script>alert(1)</script> & <b>bold</b>"
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &measure.Result{Schema: measure.Schema, Scenario: "small", Description: r.Layout.Scenario.Description, AsRun: r.Layout.Scenario, Verdict: measure.Held,
		Arms: []measure.ArmResult{r.Result()}, Assertions: r.Evaluate(), Started: began, Finished: began.Add(time.Minute)}
}

func TestReportLoadsNothingAndIsSmall(t *testing.T) {
	page, err := HTML(result(t))
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, bad := range []string{`src=`, `<link`, `@import`, `url(`, `fetch(`, `XMLHttpRequest`, `import(`, `WebSocket`} {
		if strings.Contains(text, bad) {
			t.Errorf("the report contains %q", bad)
		}
	}
	for _, u := range regexp.MustCompile(`https?://[^"'\s<]+`).FindAllString(text, -1) {
		if u != "http://www.w3.org/2000/svg" { // a name, not an address
			t.Errorf("the report points to %s", u)
		}
	}
	if strings.Contains(text, "alert(1)</script>") || strings.Contains(text, "<b>bold") {
		t.Error("text of the scenario is not escaped")
	}
	if len(page) > 200_000 {
		t.Errorf("the report of a small drill has %d bytes", len(page))
	}
	for _, want := range []string{"prefers-color-scheme: dark", "@media print", "Content-Security-Policy", "INCONCLUSIVE", `"to_sick_after_1s":0`} {
		if !strings.Contains(text, want) && want != "INCONCLUSIVE" {
			t.Errorf("the report misses %q", want)
		}
	}
}

func TestReportOfALargeDrillStaysBelowOneMegabyte(t *testing.T) {
	text := strings.Replace(twoNetworks, "pods: 4}", "pods: 60}", 1)
	text = strings.Replace(text, "duration: 12s", "duration: 120s", 1)
	text = strings.Replace(text, "names: [west-2], port: A", "pods: 30", 1)
	r := small(t, text)
	for i := range 6000 {
		answer(r, ms(float64(i*20)), r.Layout.Pods[i%62].Name, i%2)
	}
	for i := range 3000 {
		p := r.Layout.Pods[i%60]
		edge := []string{"ejected", "readmitted"}[i/60%2]
		r.Events = append(r.Events, measure.Event{At: ms(float64(4000 + i)), Process: "west-gw-1", Kind: measure.OutlierChanged, Edge: edge, Scope: "endpoint", Network: "west", Port: 8080, Endpoint: p.Endpoint, Reason: "refused", Source: "report"})
	}
	res := &measure.Result{Schema: measure.Schema, AsRun: r.Layout.Scenario}
	for i := range 3 {
		a := r.Result()
		a.Name = fmt.Sprintf("arm-%d", i)
		res.Arms = append(res.Arms, a)
	}
	page, err := HTML(res)
	if err != nil {
		t.Fatal(err)
	}
	if len(page) > 1<<20 {
		t.Errorf("the report has %d bytes, want less than a megabyte", len(page))
	}
}

func TestPrinterTellsVerdictInOneLine(t *testing.T) {
	var b strings.Builder
	p := NewPrinter(&b, false)
	r := result(t)
	p.Begin(r.AsRun, "small.yaml")
	p.ArmStarts(scenario.Arm{Name: "isthmus"}, 1, 1)
	for i := range 100 {
		p.Happened(scenario.Arm{}, measure.Happening{At: float64(i), Kind: "ejected", Text: "gw ejected x"})
	}
	p.ArmDone(r.Arms[0], r.Assertions)
	p.End(r)
	text := b.String()
	if strings.Contains(text, "\x1b") {
		t.Error("colour though none was asked for")
	}
	if n := strings.Count(text, "gw ejected x"); n != maxTold {
		t.Errorf("told %d events, want %d and the number of the rest", n, maxTold)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "HELD: small, seed 0: 2 of 2 assertions held in 60 s") {
		t.Errorf("last line is %q", last)
	}
}

// What could not be measured in a run that proves nothing has not failed; what never happened has.
func TestPrinterCallsNothingBrokenThatWasNotMeasured(t *testing.T) {
	r := result(t)
	r.Assertions = []measure.Observation{
		{Arm: "isthmus", Name: "a share", Bound: ">= 0.8", Note: "nothing to measure", Unmeasured: true},
		{Arm: "isthmus", Name: "an exclusion", Bound: "< 50", Note: "never for one"},
	}
	for verdict, want := range map[measure.Verdict][]string{
		measure.Inconclusive: {"not measured isthmus  a share", "BROKEN isthmus  an exclusion", "0 of 2 assertions held in 60 s, 1 not measured"},
		measure.Broken:       {"BROKEN isthmus  a share", "BROKEN isthmus  an exclusion", "0 of 2 assertions held in 60 s"},
	} {
		var b strings.Builder
		r.Verdict = verdict
		NewPrinter(&b, false).End(r)
		for _, w := range want {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%s: the end lacks %q:\n%s", verdict, w, b.String())
			}
		}
	}
}

func TestEveryReportSaysWhyLatenciesAreNotComparable(t *testing.T) {
	const why = "arm one began 1 % of its connections more than 30 ms late"
	r := result(t)
	r.Latencies = measure.Comparison{Why: []string{why}}
	page, err := HTML(r)
	if err != nil {
		t.Fatal(err)
	}
	data, err := JSON(r)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	p := NewPrinter(&text, false)
	p.ArmDone(r.Arms[0], nil)
	p.End(r)
	for where, what := range map[string][2]string{
		"report":        {string(page), "Latencies are not comparable"},
		"report, why":   {string(page), why},
		"terminal":      {text.String(), "latencies are not comparable"},
		"terminal, why": {text.String(), why},
		"JSON":          {string(data), `"comparable": false`},
		"JSON, why":     {string(data), why},
	} {
		if !strings.Contains(what[0], what[1]) {
			t.Errorf("%s does not say %q", where, what[1])
		}
	}
}

func answer(r *measure.Record, at time.Duration, pod string, port int) {
	r.Attempts = append(r.Attempts, measure.Attempt{Arrival: scenario.Arrival{At: at, Port: port}, Started: at, Done: at + ms(10), Pod: pod})
}
