package lab

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

func TestASurgeOfWhichNobodyNoticesIsInconclusive(t *testing.T) {
	s := tinyScenario(t, "hold: {fraction: 0.1, for: 500ms, every: 50ms}", "surge: {at: 1s, until: 2s, rate: 100}",
		"faults:\n  - {name: f, at: 1s, until: 2s, FAULT}\n", "")
	r, _, err := run(t, t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	g := r.Arms[0].Generator.Surge
	if g == nil || g.Planned < 60 || g.Planned > 140 { // 100, sd 10
		t.Errorf("the surge: %+v, want about 100 connections", g)
	}
	i := slices.IndexFunc(r.Arms[0].Phases, func(p measure.Phase) bool { return p.Name == "surge" })
	if i < 0 {
		t.Fatalf("no surge among the phases %v", r.Arms[0].Phases)
	}
	// On a machine that others keep busy some are late: then it did overload somebody.
	p := r.Arms[0].Phases[i]
	noticed := p.Failed+p.Refused > 0 || p.LatencyMS.Max == nil || *p.LatencyMS.Max > 500
	if !noticed && (r.Verdict != measure.Inconclusive || !strings.Contains(strings.Join(r.Reasons, " "), "overloaded nobody")) {
		t.Errorf("got %s because of %q", r.Verdict, r.Reasons)
	}
}

func TestASurgeNeedsDescriptors(t *testing.T) {
	big := scenario.Traffic{Timeout: 2 * time.Second, Surge: scenario.Surge{Rate: 4000}}
	if err := enough(big, 9000); err != nil {
		t.Errorf("8000 connections and 9000 files: %v", err)
	}
	if err := enough(big, 8999); err == nil || !strings.Contains(err.Error(), "raise the limit to 9000 (ulimit -n)") {
		t.Errorf("8000 connections and 8999 files: %v, want the remedy", err)
	}
}

// Only drills with a surge change priorities, and only those of the children.
func TestProcessesUnderASurgeYield(t *testing.T) {
	niceOf := func(surge scenario.Surge) int {
		st := newStarter()
		defer st.close()
		if err := prepareSurge(scenario.Traffic{Timeout: time.Second, Surge: surge}, st); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		c := exec.Command("nice")
		c.Stdout = &out
		if err := st.start(c); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(out.String()))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := niceOf(scenario.Surge{})
	if got, want := niceOf(scenario.Surge{Rate: 1}), min(before+niceness, 19); got != want {
		t.Errorf("with a surge a child has niceness %d, want %d", got, want)
	}
	if got := niceOf(scenario.Surge{}); got != before {
		t.Errorf("afterwards a child has niceness %d, want %d", got, before)
	}
}

func TestProcessorTimesAreRead(t *testing.T) {
	got, err := parseTimes([]byte("cpu  10 20 30 400 5 6 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n"))
	if want := (times{all: 486, idle: 405, programs: 60, count: 1}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"", "cpu 1 2 3", "cpu a b c d e f g h", "intr 1 2 3 4 5 6 7 8 9"} {
		if _, err := parseTimes([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	n, err := parseProcessTime([]byte("42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 3 20 0 5 0 100 1 1"), false)
	if err != nil || n != 300 {
		t.Errorf("got %d, %v; want 300", n, err)
	}
	if _, err := parseProcessTime([]byte("42 (a) S"), false); err == nil {
		t.Error("half a line was read")
	}
}

func TestOtherProgramsMakeASurgeDoubtful(t *testing.T) {
	begin := times{all: 1000, idle: 500, programs: 400, own: 100}
	for _, c := range []struct {
		name  string
		end   times
		doubt bool
	}{
		{"all is ours", times{all: 2000, idle: 500, programs: 1350, own: 1050}, false},
		{"others take a quarter", times{all: 2000, idle: 500, programs: 1350, own: 800}, false},
		{"others take half", times{all: 2000, idle: 500, programs: 1350, own: 550}, true},
		{"others take half of a machine with room", times{all: 2000, idle: 700, programs: 1150, own: 350}, false},
		{"no time passed", begin, false},
	} {
		if got := begin.doubt(c.end); (got != "") != c.doubt {
			t.Errorf("%s: %q, want doubt %v", c.name, got, c.doubt)
		}
	}
}

func TestOthersAreCountedInProcessors(t *testing.T) {
	begin := times{all: 1000, idle: 500, programs: 400, own: 100, count: 2}
	for _, c := range []struct {
		what string
		end  times
		want float64
	}{
		{"all is ours", times{all: 2000, programs: 1350, own: 1050, count: 2}, 0},
		{"a quarter of two processors", times{all: 2000, programs: 1350, own: 800, count: 2}, 0.5},
		{"more than there is", times{all: 2000, programs: 1350, own: 1150, count: 2}, 0},
		{"no time", begin, 0},
	} {
		if got := begin.others(c.end); got != c.want {
			t.Errorf("%s: %v processors, want %v", c.what, got, c.want)
		}
	}
	stat := []byte("42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 7 3 20 0 5 0 100 1 1")
	if n, err := parseProcessTime(stat, true); n != 310 || err != nil {
		t.Errorf("with children that have ended %d, %v; want 310", n, err)
	}
}
