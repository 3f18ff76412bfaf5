//go:build linux

package main

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// well is the report of ten minutes without any fault.
func well() *report {
	hold := func() map[string]footprint {
		return map[string]footprint{
			"gw-west-1": {descriptors: 17, "goroutines": 40, heapBytes: 1.2e6, "probes": 0, "served sessions": 0},
			"west-1":    {descriptors: 16, "goroutines": 27, heapBytes: 1.0e6, "probes": 0, "served sessions": 0},
		}
	}
	r := &report{options: options{abort: 0.2, slack: 0.02}, before: hold(), after: hold(), kept: 40}
	r.total.complete, r.total.aborted = 48_000, 12_000
	return r
}

func TestVerdictFindsWhatIsKept(t *testing.T) {
	const carried = 20_000 // connections in ten minutes, of the least used process
	for name, c := range map[string]struct {
		spoil func(*report)
		code  int
		cause string
	}{
		"all well":                     {func(*report) {}, fleet.ExitHeld, ""},
		"5 bytes for each connection":  {func(r *report) { r.after["west-1"][heapBytes] += 5 * carried }, fleet.ExitBroken, "live heap bytes"},
		"100 bytes in half a minute":   {func(r *report) { r.after["gw-west-1"][heapBytes] += 100 * carried / 20 }, fleet.ExitBroken, "live heap bytes"},
		"one goroutine":                {func(r *report) { r.after["gw-west-1"]["goroutines"]++ }, fleet.ExitBroken, "41 goroutines"},
		"one descriptor":               {func(r *report) { r.after["west-1"][descriptors]++ }, fleet.ExitBroken, "17 descriptors"},
		"one probe":                    {func(r *report) { r.after["gw-west-1"]["probes"]++ }, fleet.ExitBroken, "1 probes"},
		"room of its busiest moment":   {func(r *report) { r.after["west-1"][heapBytes] += 32 << 10 }, fleet.ExitHeld, ""},
		"a window":                     {func(r *report) { r.short = []string{"a window"} }, fleet.ExitBroken, "a window"},
		"a failure":                    {func(r *report) { r.total.failed = []string{"reset"} }, fleet.ExitBroken, "reset"},
		"a failure on a busy machine":  {func(r *report) { r.total.failed, r.others = []string{"reset"}, 1 }, fleet.ExitInconclusive, fleet.Quiet},
		"truncated on a busy machine":  {func(r *report) { r.total.wrong, r.others = []string{"truncated"}, 1 }, fleet.ExitBroken, "truncated"},
		"no session":                   {func(r *report) { r.kept = 0 }, fleet.ExitInconclusive, "no session"},
		"nothing was broken off":       {func(r *report) { r.total.aborted = 0 }, fleet.ExitInconclusive, "0 broken off"},
		"leaked on a busy machine too": {func(r *report) { r.after["west-1"][heapBytes] *= 2; r.others = 2 }, fleet.ExitBroken, "live heap bytes"},
	} {
		r := well()
		c.spoil(r)
		var out strings.Builder
		v := r.verdict()
		r.print(&out, v)
		if v.Code() != c.code || !strings.Contains(out.String(), c.cause) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", name, v.Code(), c.code, c.cause, &out)
		}
	}
}

var leaked [][]byte

// The measurement sees what is kept, of a real process through its admin server, and
// nothing of what answering costs.
func TestLiveHeapFindsALeakAndNothingElse(t *testing.T) {
	f, err := fleet.New("soak-test", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := &fleet.Process{Name: "self", Host: f.Addr(1, 1)}
	l, err := net.Listen("tcp4", netip.AddrPortFrom(p.Host, 15000).String())
	if err != nil {
		t.Fatal(err)
	}
	s := &admin.Server{Registry: prometheus.NewRegistry()}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, l) }()
	defer func() { cancel(); <-done }()
	look := func() float64 {
		t.Helper()
		n, err := liveHeap(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	look()
	before := look()
	m := mesh{Fleet: f}
	for range 3 { // in binary form
		if err := m.save(ctx, p, "/debug/pprof/heap", "x"); err != nil {
			t.Fatal(err)
		}
	}
	if grown := look() - before; grown > heapFloor {
		t.Errorf("three profiles count as %.0f bytes of live heap, want less than %d", grown, heapFloor)
	}
	before = look()
	const connections, each = 20_000, 100
	for range connections {
		leaked = append(leaked, make([]byte, each))
	}
	grown := look() - before
	leaked = nil
	if grown < connections*each || !(&report{options: options{slack: 0.02}}).grown(heapBytes, before, before+grown) {
		t.Errorf("%d bytes for each of %d connections count as %.0f", each, connections, grown)
	}
}
