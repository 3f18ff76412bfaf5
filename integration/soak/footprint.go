//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

// footprint is what a process holds, by the name of the resource.
type footprint map[string]float64

// held are the resources that must be back where they began, by metric; the
// descriptors are counted in /proc.
var held = map[string]string{
	"go_goroutines":           "goroutines",
	"go_gc_heap_live_bytes":   "live heap bytes",
	"isthmus_served_sessions": "served sessions",
	"isthmus_probes":          "probes",
}

const descriptors = "descriptors"

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

// settle waits until idle sessions have ended and returns what each process
// holds: the least of several looks, as gossip and timers hold a little now and
// then. The heap profiles of the last look are beside the logs, for go tool pprof.
func (m *mesh) settle(ctx context.Context, when string) (map[string]footprint, error) {
	const looks, rest = 10, 2 * time.Second
	fmt.Println("waiting for idle sessions to end")
	least := map[string]footprint{}
	for wait, n := 4*idleTime, 0; n < looks; wait, n = rest, n+1 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		for _, p := range m.Processes {
			f, err := measure(ctx, p, filepath.Join(m.Dir, p.Name+"-heap-"+when+".pb.gz"))
			if err != nil {
				return nil, fmt.Errorf("%s: %w; its log is in %s", p.Name, err, m.Dir)
			}
			least[p.Name] = f.least(least[p.Name])
		}
	}
	return least, nil
}

// least takes the lesser of each resource; what o does not know counts as more.
func (f footprint) least(o footprint) footprint {
	for k, v := range o {
		f[k] = min(f[k], v)
	}
	return f
}

// measure asks a process what it holds, after a garbage collection.
func measure(ctx context.Context, p *fleet.Process, profile string) (footprint, error) {
	for range 3 { // sync.Pool keeps its contents for two
		err := p.Get(ctx, "/debug/pprof/heap?gc=1", func(r io.Reader) error {
			text, err := io.ReadAll(r)
			return errors.Join(err, os.WriteFile(profile, text, 0o600))
		})
		if err != nil {
			return nil, err
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Pid()))
	if err != nil {
		return nil, err
	}
	m, err := p.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	f := footprint{descriptors: float64(len(fds))}
	for metric, name := range held {
		if f[name], err = m.Sum(metric, nil); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// dump writes what every process is doing beside the logs.
func (m *mesh) dump(ctx context.Context) {
	for _, p := range m.Processes {
		for _, path := range []string{"/state", "/metrics", "/debug/pprof/goroutine?debug=1"} {
			name := strings.NewReplacer("/", "-", "?", "-").Replace(p.Name + path)
			err := p.Get(ctx, path, func(r io.Reader) error {
				text, err := io.ReadAll(r)
				return errors.Join(err, os.WriteFile(filepath.Join(m.Dir, name), text, 0o600))
			})
			if err != nil {
				fmt.Fprintf(os.Stderr, "soak: %s of %s: %v\n", path, p.Name, err)
			}
		}
	}
}

func (f footprint) names() []string { return slices.Sorted(maps.Keys(f)) }
