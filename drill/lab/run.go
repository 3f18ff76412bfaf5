package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
)

// Options say where and how a drill runs.
type Options struct {
	Out  string // folder for results and, while it runs, for the arms' files
	Bin  string // folder of the programs isthmus, gateway and nodeproxy
	Keep bool   // keep every arm's configs, CA and logs, not only those of arms that failed
	// Progress is told what happens. Nil is silence.
	Progress Progress
}

// Progress is told what a drill is doing. Calls do not overlap.
type Progress interface {
	ArmStarts(a scenario.Arm, n, of int)
	ArmRuns(a scenario.Arm, took time.Duration)
	Happened(a scenario.Arm, h measure.Happening)
	ArmDone(a measure.ArmResult, seen []measure.Observation)
	// ArmAgain is called where the machine was too busy for the arm, before it runs once more.
	ArmAgain(a scenario.Arm)
}

type silence struct{}

func (silence) ArmStarts(scenario.Arm, int, int)                 {}
func (silence) ArmRuns(scenario.Arm, time.Duration)              {}
func (silence) Happened(scenario.Arm, measure.Happening)         {}
func (silence) ArmAgain(scenario.Arm)                            {}
func (silence) ArmDone(measure.ArmResult, []measure.Observation) {}

// Run runs every arm of s, one after the other, and judges. An error means that
// the drill did not run to its end; it is a *StartError when a process did not
// come up, and ctx's cause when ctx ended.
func Run(ctx context.Context, s *scenario.Scenario, o Options) (*measure.Result, error) {
	if o.Progress == nil {
		o.Progress = silence{}
	}
	bin, err := findBinaries(o.Bin)
	if err != nil {
		return nil, err
	}
	out, err := filepath.Abs(o.Out)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, fmt.Errorf("make the output folder: %w", err)
	}
	st := newStarter()
	defer st.close()
	at, err := networkFor(s, st)
	if err != nil {
		return nil, err
	}
	defer at.close()
	if err := prepareSurge(s.Traffic, st); err != nil {
		return nil, err
	}
	layout, release, err := claim(ctx, at, s)
	if err != nil {
		return nil, err
	}
	defer release()
	r := &measure.Result{Schema: measure.Schema, Scenario: s.Name, Description: s.Description, Seed: s.Seed, Started: time.Now(), Environment: environment(layout), AsRun: s}
	for i, arm := range s.Arms {
		o.Progress.ArmStarts(arm, i+1, len(s.Arms))
		result, seen, err := twiceIfDisturbed(func() (measure.ArmResult, []measure.Observation, error) {
			return runArm(ctx, layout, at, arm, bin, st, out, o)
		}, func(first measure.ArmResult) {
			if !o.Keep {
				os.RemoveAll(first.Kept)
			}
			o.Progress.ArmAgain(arm)
		})
		if err != nil {
			return nil, fmt.Errorf("arm %s: %w", arm.Name, err)
		}
		r.Arms = append(r.Arms, result)
		r.Assertions = append(r.Assertions, seen...)
		o.Progress.ArmDone(result, seen)
	}
	r.Finished = time.Now()
	r.Judge()
	return r, nil
}

// twiceIfDisturbed runs an arm, and once more if a busy machine disturbed it. The second result
// counts, whatever it is. again is called in between, with the first one.
func twiceIfDisturbed(run func() (measure.ArmResult, []measure.Observation, error), again func(first measure.ArmResult)) (measure.ArmResult, []measure.Observation, error) {
	result, seen, err := run()
	if err != nil || !result.Disturbed() {
		return result, seen, err
	}
	again(result)
	return run()
}

func environment(l *scenario.Layout) measure.Environment {
	return measure.Environment{Version: buildinfo.Version(), Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Addresses: fmt.Sprintf("127.%d.0.0/16", l.Second)}
}

// runArm runs one arm in a new folder, which is kept if asked for, or if the
// arm could not start, or broke an assertion, or is in doubt.
func runArm(ctx context.Context, l *scenario.Layout, at *network, arm scenario.Arm, bin binaries, st *starter, out string, o Options) (result measure.ArmResult, seen []measure.Observation, err error) {
	dir, err := os.MkdirTemp(out, "arm-"+arm.Name+"-")
	if err != nil {
		return result, nil, fmt.Errorf("make the arm's folder: %w", err)
	}
	keep := o.Keep
	defer func() {
		if !keep && (err == nil || ctx.Err() != nil) {
			os.RemoveAll(dir)
		}
	}()
	began := time.Now()
	a := &armRun{layout: l, network: at, arm: arm, bin: bin, dir: dir, starter: st, base: began, zero: began,
		running: map[string]*process{}, pods: map[string]*pod{}, logged: map[string]measure.Lines{}, teller: measure.NewTeller(l),
		report: func(h measure.Happening) { o.Progress.Happened(arm, h) }}
	defer a.stop()
	if err := a.start(ctx); err != nil {
		if ctx.Err() != nil {
			return result, nil, context.Cause(ctx)
		}
		return result, nil, errors.Join(err, fmt.Errorf("configs and logs are in %s", dir))
	}
	o.Progress.ArmRuns(arm, time.Since(began))
	record, err := a.drive(ctx)
	if err != nil {
		return result, nil, err
	}
	result, seen = record.Result(), record.Evaluate()
	for _, v := range seen {
		keep = keep || !v.Held
	}
	keep = keep || len(result.Inconclusive) > 0
	if keep {
		result.Kept = dir
	}
	return result, seen, nil
}

// flushTime is how long the processes have to write the log lines of the last
// connections before they are told to end.
const flushTime = 300 * time.Millisecond

// drive runs traffic and faults on the processes that are up, stops everything
// and returns what was seen.
func (a *armRun) drive(ctx context.Context) (*measure.Record, error) {
	s := a.layout.Scenario
	schedule := scenario.Schedule(s, len(a.layout.Clients))
	first := a.readings(ctx)
	a.mu.Lock()
	a.zero = time.Now().Add(50 * time.Millisecond)
	a.started = true
	a.mu.Unlock()
	outages := make([]measure.Outage, len(s.Faults))
	fctx, over := context.WithCancel(ctx)
	defer over()
	var healing, lasting sync.WaitGroup
	for i, f := range s.Faults {
		wait := &healing
		if f.Until == 0 {
			wait = &lasting
		}
		wait.Go(func() { outages[i] = a.inject(fctx, i) })
	}
	var busy string
	var watching sync.WaitGroup
	watching.Go(func() { busy = a.watchSurge(fctx) })
	c := &clients{network: a.network, layout: a.layout, exchange: s.ExchangeOf(a.arm), zero: a.zero}
	begin, unread := a.times()
	attempts := c.run(ctx, schedule)
	a.sleepUntil(ctx, s.Duration)
	watching.Wait()
	healing.Wait() // one may end with the traffic
	over()
	lasting.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	last := a.readings(ctx)
	end, alsoUnread := a.times()
	sleep(ctx, flushTime)
	a.stop()
	r := a.record(attempts, outages)
	r.Usage = a.usage(first, last)
	if unread == nil && alsoUnread == nil {
		r.Others = begin.others(end)
	}
	if busy != "" {
		r.Doubts = append(r.Doubts, busy)
	}
	return r, nil
}
