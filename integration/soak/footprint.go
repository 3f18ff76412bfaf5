//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// footprint is what a process holds, by the name of the resource.
type footprint map[string]float64

// held are the resources that must be back where they began, by metric; the
// descriptors are counted in /proc.
var held = map[string]string{
	"go_goroutines":                "goroutines",
	"go_memstats_heap_alloc_bytes": "heap bytes",
	// "isthmus_sessions":             "sessions",
	// "isthmus_streams":              "streams",
	// "isthmus_window_taken_bytes":   "window bytes taken",
	// "isthmus_probes":               "probes",
}

const descriptors = "descriptors"

// settle waits until idle sessions have ended and returns what each process
// holds: the least of several looks, as gossip and timers hold a little now and
// then.
func (m *mesh) settle(ctx context.Context) (map[string]footprint, error) {
	const looks, rest = 10, 2 * time.Second
	fmt.Println("waiting for idle sessions to end")
	least := map[string]footprint{}
	for wait, n := 4*idleTime, 0; n < looks; wait, n = rest, n+1 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		for _, p := range m.processes {
			f, err := p.footprint(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w; its log is in %s", p.name, err, m.dir)
			}
			least[p.name] = f.least(least[p.name])
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

// footprint asks a process what it holds, after a garbage collection.
func (p *process) footprint(ctx context.Context) (footprint, error) {
	for range 3 { // sync.Pool keeps its contents for two
		if err := p.get(ctx, "/debug/pprof/heap?gc=1", func(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }); err != nil {
			return nil, err
		}
	}
	f := footprint{}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		return nil, err
	}
	f[descriptors] = float64(len(fds))
	return f, p.get(ctx, "/metrics", func(r io.Reader) error {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(r)
		if err != nil {
			return err
		}
		for metric, name := range held {
			family := families[metric]
			if family == nil {
				return fmt.Errorf("it has no metric %s", metric)
			}
			f[name] = sum(family)
		}
		return nil
	})
}

// dump writes what every process is doing beside the logs.
func (m *mesh) dump(ctx context.Context) {
	for _, p := range m.processes {
		for _, path := range []string{"/state", "/metrics", "/debug/pprof/goroutine?debug=1", "/debug/pprof/heap?debug=1"} {
			name := strings.NewReplacer("/", "-", "?", "-").Replace(p.name + path)
			err := p.get(ctx, path, func(r io.Reader) error {
				text, err := io.ReadAll(r)
				return errors.Join(err, os.WriteFile(filepath.Join(m.dir, name), text, 0o600))
			})
			if err != nil {
				fmt.Fprintf(os.Stderr, "soak: %s of %s: %v\n", path, p.name, err)
			}
		}
	}
}

func sum(f *dto.MetricFamily) (total float64) {
	for _, m := range f.Metric {
		total += m.GetGauge().GetValue()
	}
	return total
}

func (p *process) get(ctx context.Context, path string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.admin.String()+path, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return read(resp.Body)
}

func (f footprint) names() []string { return slices.Sorted(maps.Keys(f)) }
