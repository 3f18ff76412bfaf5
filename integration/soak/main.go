//go:build linux

// Soak runs the real binaries for minutes under connections of which a part is
// broken off, at random points and from either side, while pods come and go,
// and then asks whether everything is back where it began: descriptors,
// goroutines, heap, flow-control windows and probes of every process.
//
//	go run ./integration/soak --for 10m
//
// It needs no privileges: everything is on addresses of 127.0.0.0/8. Its last line
// says HELD, BROKEN with the cause: a connection failed that nobody broke off, a
// broken-off connection looked complete to its other end, or a process kept
// something; or INCONCLUSIVE when nothing was tried, or connections failed while
// other processes used the machine. The exit codes are those of isthmus drill: 0, 1
// and 4, 2 for a mistake in the command line, 3 when it could not do its work.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

type options struct {
	bin      string
	duration time.Duration
	warmUp   time.Duration
	rate     float64 // connections per second
	abort    float64 // share of connections that one side breaks off
	seed     uint64
	slack    float64 // how much more than at the start a process may hold
	keep     bool    // keep configurations and logs
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder of gateway, nodeproxy and isthmus")
	flag.DurationVar(&o.duration, "for", 10*time.Minute, "how long traffic runs")
	flag.DurationVar(&o.warmUp, "warm-up", time.Minute, "traffic before the first measurement")
	flag.Float64Var(&o.rate, "rate", 100, "connections per second")
	flag.Float64Var(&o.abort, "abort", 0.2, "share of connections that are broken off")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of everything random")
	flag.Float64Var(&o.slack, "slack", 0.02, "how much more than at its start a process may hold at the end; of heap 64 KiB in any case")
	flag.BoolVar(&o.keep, "keep", false, "keep configurations and logs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(fleet.ExitStart)
	}
	v := r.verdict()
	r.print(os.Stdout, v)
	os.Exit(v.Code())
}

// The warm-up ends with a peak beyond what the soak reaches by chance: some of what the
// Go runtime keeps for ever grows with the most that there ever was at once, descriptors
// of goroutines and the room of maps above all. Its connections stay open, because how
// many there are at once must not depend on how busy the machine is.
const (
	peak     = 3 // times the rate
	peakTime = 10 * time.Second
	peakHold = 4 * time.Second // how long each is open at least; shorter than pods are terminating, see churn
)

// run starts a mesh, measures it, loads it and measures it again.
func run(ctx context.Context, o options) (*report, error) {
	m, err := newMesh(o)
	if err != nil {
		return nil, err
	}
	defer m.close()
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	r := &report{options: o}
	load := func(name string, rate float64, d, hold time.Duration) error {
		fmt.Printf("%s: %v of %.0f connections/s, seed %d\n", name, d, rate, o.seed)
		t := m.traffic(ctx, rate, d, hold)
		r.total.add(&t)
		return context.Cause(ctx)
	}
	if err := load("warm-up", o.rate, o.warmUp, 0); err != nil {
		return nil, err
	}
	if err := load("peak", peak*o.rate, peakTime, peakHold); err != nil {
		return nil, err
	}
	if _, r.before, err = m.settle(ctx, "before"); err != nil {
		return nil, err
	}
	meter, err := m.StartMeter()
	if err != nil {
		return nil, err
	}
	if err := load("soak", o.rate, o.duration, 0); err != nil {
		return nil, err
	}
	if r.others, err = meter.Others(); err != nil {
		return nil, err
	}
	if r.kept, r.short, err = m.windows(ctx); err != nil {
		return nil, err
	}
	if r.after, _, err = m.settle(ctx, "after"); err != nil {
		return nil, err
	}
	if v := r.verdict(); v.Code() != fleet.ExitHeld {
		m.Keep = true
		r.logs = m.Dir
		m.dump(ctx)
	}
	return r, nil
}
