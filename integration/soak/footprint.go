//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

// footprint is what a process holds, by the name of the resource.
type footprint map[string]float64

// held are the resources that must be back where they began, by metric; the
// descriptors are counted in /proc, and the heap is measured by liveHeap.
var held = map[string]string{
	"go_goroutines":           "goroutines",
	"isthmus_served_sessions": "served sessions",
	"isthmus_probes":          "probes",
}

const (
	descriptors = "descriptors"
	heapBytes   = "live heap bytes"
)

// windows asks every process whether the sessions that have just carried traffic,
// and are still kept, hold any of it. It returns how many such sessions are served.
func (m *mesh) windows(ctx context.Context) (sessions float64, problems []string, err error) {
	for _, p := range m.Processes {
		metrics, err := p.Metrics(ctx)
		if err != nil {
			return 0, nil, fmt.Errorf("%s: %w; its log is in %s", p.Name, err, m.Dir)
		}
		served, err := metrics.Sum("isthmus_served_sessions", nil)
		if err != nil {
			return 0, nil, err
		}
		held, err := metrics.Sum("isthmus_held_bytes", nil)
		if err != nil {
			return 0, nil, err
		}
		sessions += served
		if held != 0 {
			problems = append(problems, fmt.Sprintf("%s: connection windows are short of %.0f bytes without any connection", p.Name, held))
		}
	}
	return sessions, problems, nil
}

// settle waits until idle sessions have ended and looks several times at what each
// process holds, as gossip and timers hold a little now and then. It returns the least
// of each resource, and of what is counted also the most. Heap profiles of that time
// are beside the logs, for go tool pprof.
func (m *mesh) settle(ctx context.Context, when string) (least, most map[string]footprint, err error) {
	const looks, rest = 10, 2 * time.Second
	fmt.Println("waiting for idle sessions to end")
	least, most = map[string]footprint{}, map[string]footprint{}
	for wait, n := 4*idleTime, 0; n < looks; wait, n = rest, n+1 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		for _, p := range m.Processes {
			f, err := measure(ctx, p)
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w; its log is in %s", p.Name, err, m.Dir)
			}
			least[p.Name], most[p.Name] = f.with(least[p.Name], math.Min), f.with(most[p.Name], math.Max)
		}
	}
	for _, p := range m.Processes {
		if err := m.save(ctx, p, "/debug/pprof/heap?gc=1", p.Name+"-heap-"+when+".pb.gz"); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		most[p.Name][heapBytes] = least[p.Name][heapBytes] // more is what was being done at that moment
	}
	return least, most, nil
}

// save writes an answer of a process beside the logs.
func (m *mesh) save(ctx context.Context, p *fleet.Process, path, file string) error {
	return p.Get(ctx, path, func(r io.Reader) error {
		text, err := io.ReadAll(r)
		return errors.Join(err, os.WriteFile(filepath.Join(m.Dir, file), text, 0o600))
	})
}

// with combines each resource with o's; what o does not know stays.
func (f footprint) with(o footprint, combine func(a, b float64) float64) footprint {
	both := maps.Clone(f)
	for k, v := range o {
		both[k] = combine(f[k], v)
	}
	return both
}

// measure asks a process what it holds.
func measure(ctx context.Context, p *fleet.Process) (footprint, error) {
	heap, err := liveHeap(ctx, p)
	if err != nil {
		return nil, err
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		return nil, err
	}
	m, err := p.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	f := footprint{descriptors: float64(len(fds)), heapBytes: heap}
	for metric, name := range held {
		if f[name], err = m.Sum(metric, nil); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// liveHeap returns how many bytes of heap objects are left after garbage
// collections: the last of three, as sync.Pool keeps its contents for two.
//
// It is HeapAlloc as the profile's text has it, which the runtime reads right after
// the collection. Any later figure, such as the metric go_gc_heap_live_bytes, has in
// it what answering costs: a profile in its binary form takes several MB to write,
// which is enough to start a collection in the middle, and that one finds
// the compressor and the buffers of the profile alive.
func liveHeap(ctx context.Context, p *fleet.Process) (bytes float64, err error) {
	for range 3 {
		err = p.Get(ctx, "/debug/pprof/heap?gc=1&debug=1", func(r io.Reader) error {
			text, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			bytes, err = heapAlloc(string(text))
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	return bytes, nil
}

// heapAlloc finds the line "# HeapAlloc = <bytes>" in a heap profile's text.
func heapAlloc(profile string) (float64, error) {
	const key = "\n# HeapAlloc = "
	_, rest, ok := strings.Cut(profile, key)
	if !ok {
		return 0, fmt.Errorf("no line %q in the heap profile", strings.TrimSpace(key))
	}
	value, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseFloat(value, 64)
}

// dump writes what every process is doing beside the logs.
func (m *mesh) dump(ctx context.Context) {
	for _, p := range m.Processes {
		for _, path := range []string{"/state", "/metrics", "/debug/pprof/goroutine?debug=1"} {
			name := strings.NewReplacer("/", "-", "?", "-").Replace(p.Name + path)
			if err := m.save(ctx, p, path, name); err != nil {
				fmt.Fprintf(os.Stderr, "soak: %s of %s: %v\n", path, p.Name, err)
			}
		}
	}
}

func (f footprint) names() []string { return slices.Sorted(maps.Keys(f)) }
