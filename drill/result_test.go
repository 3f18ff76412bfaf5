package drill

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestBoundsHoldAsWritten(t *testing.T) {
	for text, want := range map[string][3]bool{ // for 1, 2, 3
		"== 2": {false, true, false}, "!= 2": {true, false, true}, "< 2": {true, false, false},
		"<= 2": {true, true, false}, "> 2": {false, false, true}, ">=2": {false, true, true},
	} {
		b, err := ParseBound(text)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if got := b.Holds(float64(i + 1)); got != w {
				t.Errorf("%d %s: got %v, want %v", i+1, text, got, w)
			}
		}
	}
}

const asserted = twoNetworks + `
assertions:
  - {arm: isthmus, name: none fails, metric: failed, bound: "== 0"}
  - {arm: isthmus, metric: known_ms, bound: "< 1000"}
  - {metric: "latency_ms(phase=baseline)", bound: "< 1000"}
`

func TestWhatWasNotMeasuredIsNotHeld(t *testing.T) {
	r := small(t, asserted)
	r.answer(ms(5000), "west-1", 0)
	seen := r.Evaluate()
	if len(seen) != 4 {
		t.Fatalf("got %d observations, want 3 and the one of every arm", len(seen))
	}
	for i, want := range []bool{true, false, false, true} {
		if seen[i].Held != want {
			t.Errorf("%s: held %v (%s), want %v", seen[i].Metric, seen[i].Held, seen[i].Note, want)
		}
	}
	if seen[1].Observed != nil {
		t.Errorf("known_ms observed %v, want null", *seen[1].Observed)
	}
}

func TestAProcessThatEndsByItselfBreaksTheDrill(t *testing.T) {
	r := small(t, twoNetworks)
	r.Exits = []Exit{{At: ms(2000), Process: "west-gw-1", Status: "exit status 2"}}
	seen := r.Evaluate()
	if o := seen[len(seen)-1]; o.Held || !strings.Contains(o.Note, "west-gw-1 at 2.00 s: exit status 2") {
		t.Errorf("got %+v, want broken with the process's name", o)
	}
}

func result(t *testing.T) *Result {
	t.Helper()
	r := whole(t, mustParse(t, twoNetworks+"assertions: [{metric: failed, bound: '== 0'}]"), Arm{Name: "isthmus"})
	r.Layout.Scenario.Description = "</script><script>alert(1)</script> & <b>bold</b>"
	res := &Result{Schema: Schema, Scenario: "small", Description: r.Layout.Scenario.Description, AsRun: r.Layout.Scenario, Arms: []ArmResult{r.Result()}, Assertions: r.Evaluate(), Started: zero, Finished: zero.Add(time.Minute)}
	res.Judge()
	return res
}

func TestReportLoadsNothingAndIsSmall(t *testing.T) {
	page, err := result(t).Report()
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
		r.answer(ms(float64(i*20)), r.Layout.Pods[i%62].Name, i%2)
	}
	for i := range 3000 {
		p := r.Layout.Pods[i%60]
		edge := []string{"ejected", "readmitted"}[i/60%2]
		r.Events = append(r.Events, Event{At: ms(float64(4000 + i)), Process: "west-gw-1", Kind: OutlierChanged, Edge: edge, Scope: "endpoint", Network: "west", Port: 8080, Endpoint: p.Endpoint, Reason: "refused", Source: "report"})
	}
	res := &Result{Schema: Schema, AsRun: r.Layout.Scenario}
	for i := range 3 {
		a := r.Result()
		a.Name = fmt.Sprintf("arm-%d", i)
		res.Arms = append(res.Arms, a)
	}
	page, err := res.Report()
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
	p.ArmStarts(Arm{Name: "isthmus"}, 1, 1)
	for i := range 100 {
		p.Happened(Arm{}, Happening{At: float64(i), Kind: "ejected", Text: "gw ejected x"})
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

func TestCompactNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 7: "7", 1160.4: "1160", 0.02384: "0.0238", 12.345: "12.3", 99.96: "100", 123.4: "123", 1e7: "10000000"} {
		if got := compact(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
