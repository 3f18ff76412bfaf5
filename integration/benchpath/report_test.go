//go:build linux

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// measured is a result of two runs in which ours costs half of stock, by the
// processor, and a third more by p99. Run 2 costs all twice as much as run 1.
func measured() *result {
	r := &result{
		Started: time.Unix(1e9, 0), Runs: 2, Topology: "hosts", Entry: bySOCKS, ZTunnel: "version <1>",
		Loads: loads(1, 1000), Variants: []string{"direct", "single", "zt-single"},
	}
	for run := 1; run <= 2; run++ {
		for _, l := range r.Loads {
			for _, variant := range r.Variants {
				r.Samples = append(r.Samples, invented(l, variant, run))
			}
		}
	}
	r.summarize()
	return r
}

func invented(l load, variant string, run int) sample {
	cost := time.Duration(run) * time.Second
	p99 := 400.0
	if variant == "zt-single" {
		cost, p99 = 2*cost, 300
	}
	s := sample{Load: l.Name, Variant: variant, Run: run}
	s.Reply = reply{Seconds: 2, Bytes: 4 << 30, Ops: 1000, P50: 100, P99: p99}
	s.CPU = map[string]time.Duration{"app": time.Second, "load": 2 * time.Second}
	if variant == "direct" {
		return s
	}
	s.CPU["client"], s.CPU["server"] = cost, 3*cost
	s.Base = map[string]int64{"client": 10 << 20, "server": 20 << 20}
	s.RSS = map[string]int64{"client": 10<<20 + 1000*3<<10, "server": 20<<20 + 1000*5<<10}
	return s
}

func TestFigures(t *testing.T) {
	r := measured()
	for _, c := range []struct {
		load, variant, figure string
		want                  spread
	}{
		{"up1", "single", figRate, spread{2, 2, 2, 2}},
		{"up1", "single", figCPU, spread{1.5, 1, 2, 2}},
		{"up1", "single", figCPU + "/client", spread{0.375, 0.25, 0.5, 2}},
		{"up1", "single", figCPU + "/load", spread{0.5, 0.5, 0.5, 2}},
		{"up1", "direct", figCPU, spread{0, 0, 0, 2}},
		{"conn", "single", figRate, spread{500, 500, 500, 2}},
		{"conn", "single", figCPU, spread{6000, 4000, 8000, 2}},
		{"echo64", "zt-single", figP99, spread{300, 300, 300, 2}},
		{"beside", "single", figBulk, spread{2, 2, 2, 2}},
		{"idle", "single", figIdle + "/client", spread{3, 3, 3, 2}},
		{"idle", "single", figBase + "/server", spread{20, 20, 20, 2}},
	} {
		if got, ok := r.figure(c.load, c.variant, c.figure); !ok || got != c.want {
			t.Errorf("%s of %s on %s is %v (%v), want %v", c.figure, c.load, c.variant, got, ok, c.want)
		}
	}
	if _, ok := r.figure("beside", "single", figCPU); ok {
		t.Error("processor time is given for echoes beside bulk, which it is not for alone")
	}
}

func TestNothingMovedGivesNoFigure(t *testing.T) {
	for _, u := range []unit{perGiB, perConnection, perEcho, perIdle} {
		for name, v := range (sample{CPU: map[string]time.Duration{"client": 1}}).figures(u) {
			if v != 0 || math.IsNaN(v) {
				t.Errorf("per %s a sample without anything has %s = %v", u, name, v)
			}
		}
	}
}

func TestBounds(t *testing.T) {
	r := measured()
	find := func(load, figure string) row {
		i := slices.IndexFunc(r.Rows, func(b row) bool { return b.Load == load && b.Figure == figure && b.OfLoad == load })
		if i < 0 {
			t.Fatalf("no bound of %s for %s", figure, load)
		}
		return r.Rows[i]
	}
	if b := find("up1", figCPU); b.Ratio != 0.5 || b.Low != 0.5 || b.High != 0.5 || !b.Held {
		t.Errorf("half the processor time is %+v", b)
	}
	if b := find("echo64", figP99); math.Abs(b.Ratio-4.0/3) > 1e-9 || b.Held {
		t.Errorf("a third more at p99 is %+v", b)
	}
	for _, b := range r.Rows {
		if b.Variant == "double" {
			t.Errorf("there is a verdict on what was not measured: %+v", b)
		}
	}
}

func TestErrorsAreToldAndFail(t *testing.T) {
	r := measured()
	if err := r.err(); err != nil {
		t.Errorf("without failed operations: %v", err)
	}
	r.Samples[4].Reply.Errors, r.Samples[4].Reply.First = 3, "no such thing"
	r.summarize()
	err := r.err()
	if err == nil || !strings.Contains(err.Error(), "3 failed") || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("three failed operations are %v", err)
	}
}

func TestReportIsOneFileWithEveryLoad(t *testing.T) {
	r := measured()
	page, err := r.report()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range r.Loads {
		if !strings.Contains(string(page), "<h2>"+l.Name+"</h2>") {
			t.Errorf("the page has no section of %s", l.Name)
		}
	}
	for _, want := range []string{"MISSED", "held", "version &lt;1&gt;"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if m := regexp.MustCompile(`(?i)(src|href)=|url\(|@import|<script`).Find(page); m != nil {
		t.Errorf("the page loads something: %s", m)
	}
	plots := regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAll(page, -1)
	if len(plots) < len(r.Loads) {
		t.Errorf("there are %d plots of %d loads", len(plots), len(r.Loads))
	}
	for _, p := range plots {
		if err := wellFormed(string(p)); err != nil {
			t.Errorf("plot: %v\n%s", err, p)
		}
		if strings.Contains(string(p), "NaN") || strings.Contains(string(p), "Inf") || strings.Contains(string(p), `width="-`) {
			t.Errorf("a plot has numbers that are none:\n%s", p)
		}
	}
}

func wellFormed(text string) error {
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestTableHasARowPerVariant(t *testing.T) {
	r := measured()
	for _, l := range r.Loads {
		got := r.tableOf(l)
		if len(got.Rows) != len(r.Variants) {
			t.Errorf("the table of %s has %d rows, want %d", l.Name, len(got.Rows), len(r.Variants))
		}
		for _, row := range got.Rows {
			if len(row) != len(got.Head) {
				t.Errorf("a row of %s has %d texts under %d heads", l.Name, len(row), len(got.Head))
			}
		}
	}
	var b strings.Builder
	if err := r.print(&b); err != nil || !strings.Contains(b.String(), "1.50 (1.00–2.00)") {
		t.Errorf("print (%v) has no median with its spread:\n%s", err, b.String())
	}
}

func TestShort(t *testing.T) {
	for x, want := range map[float64]string{0: "0.00", 0.126: "0.13", 9.87: "9.87", 12.34: "12.3", 123.4: "123", 12345: "12345", -2.5: "-2.50"} {
		if got := short(x); got != want {
			t.Errorf("short(%v) = %q, want %q", x, got, want)
		}
	}
}
