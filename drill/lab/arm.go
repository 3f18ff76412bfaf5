package lab

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/measure"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// armRun is one arm: its processes, relays, clients and what they saw. Safe for
// concurrent use between start and stop.
type armRun struct {
	layout  *scenario.Layout
	network *network
	arm     scenario.Arm
	bin     binaries
	dir     string // configs, CA and logs of this arm
	starter *starter
	report  func(measure.Happening) // progress; called by one goroutine at a time
	base    time.Time               // when the arm began
	zero    time.Time               // the first instant of traffic, set before any is

	relays []*gossipRelay

	mu      sync.Mutex
	running map[string]*process
	pods    map[string]*pod
	files   []*os.File
	events  []measure.Event // since base
	exits   []measure.Exit
	logged  map[string]measure.Lines // by process, while traffic ran
	ending  bool                     // processes may end now
	over    time.Time                // since when; zero until then
	started bool                     // zero is set
	teller  *measure.Teller
	told    sync.Mutex
}

// binaries are the programs that a drill starts.
type binaries struct{ isthmus, gateway, nodeproxy string }

func findBinaries(dir string) (binaries, error) {
	b := binaries{filepath.Join(dir, "isthmus"), filepath.Join(dir, "gateway"), filepath.Join(dir, "nodeproxy")}
	for _, p := range []string{b.isthmus, b.gateway, b.nodeproxy} {
		if _, err := os.Stat(p); err != nil {
			return b, fmt.Errorf("find the programs to run: %w: build them all into one folder, for example with make build", err)
		}
	}
	return b, nil
}

// StartError is a process that did not come up, with the end of its log.
type StartError struct {
	Process string
	Log     string // last lines
	Err     error
}

func (e *StartError) Error() string {
	if e.Log == "" {
		return fmt.Sprintf("start %s: %v", e.Process, e.Err)
	}
	return fmt.Sprintf("start %s: %v\nthe end of its log:\n%s", e.Process, e.Err, e.Log)
}

func (e *StartError) Unwrap() error { return e.Err }

func (a *armRun) startError(name string, err error) error {
	return &StartError{Process: name, Log: tail(filepath.Join(a.dir, name+".log"), 12), Err: err}
}

func (a *armRun) now() time.Duration { return time.Since(a.zero) }

// say passes one line of the story on.
func (a *armRun) say(h measure.Happening) {
	a.told.Lock()
	defer a.told.Unlock()
	a.report(h)
}

// tell is say for something that happens now.
func (a *armRun) tell(kind, text string) {
	a.say(measure.Happening{At: a.now().Seconds(), Kind: kind, Text: text})
}

// launch starts a program of this arm under name and keeps it until stop.
func (a *armRun) launch(name, binary string, args []string, control bool, stdout func([]byte)) (*process, error) {
	f, err := createLog(a.dir, name)
	if err != nil {
		return nil, a.startError(name, err)
	}
	a.mu.Lock()
	a.files = append(a.files, f)
	a.mu.Unlock()
	o := output{file: f, line: func(b []byte) { a.line(name, b) }}
	p, err := launch(a.starter, name, binary, args, a.dir, control, stdout, o, a.ended)
	if err != nil {
		return nil, a.startError(name, err)
	}
	a.mu.Lock()
	a.running[name] = p
	a.mu.Unlock()
	return p, nil
}

// line takes one line of a process's log, tells what is worth telling at once,
// and keeps what the record needs.
func (a *armRun) line(process string, b []byte) {
	e, ok := measure.ParseLine(process, b, a.base)
	if !ok {
		return
	}
	a.mu.Lock()
	if a.started || e.Kind == measure.LinesLost {
		measure.CountLine(a.logged, e)
	}
	a.mu.Unlock()
	if !measure.Tells(a.layout, e) {
		return
	}
	a.mu.Lock()
	a.events = append(a.events, e)
	live := a.started && !a.ending
	a.mu.Unlock()
	if !live || e.Kind == measure.Connection {
		return
	}
	e = e.Since(a.zero.Sub(a.base))
	a.told.Lock()
	defer a.told.Unlock()
	if h, ok := a.teller.Tell(e); ok && e.At >= 0 {
		a.report(h)
	}
}

// ended notes a process that ended though nobody asked it to.
func (a *armRun) ended(p *process) {
	status, at, yes := p.unasked()
	a.mu.Lock()
	defer a.mu.Unlock()
	if yes && !a.ending {
		a.exits = append(a.exits, measure.Exit{At: at.Sub(a.zero), Process: p.name, Status: status})
	}
}

func (a *armRun) process(name string) *process {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.running[name]
}

func (a *armRun) pod(name string) *pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[name]
}

// stop ends every process and closes everything; nothing is left when it
// returns.
func (a *armRun) stop() {
	a.mu.Lock()
	if !a.ending {
		a.ending, a.over = true, time.Now()
	}
	all := make([]*process, 0, len(a.running))
	for _, p := range a.running {
		all = append(all, p)
	}
	a.mu.Unlock()
	var wait sync.WaitGroup
	for _, p := range all {
		wait.Go(func() { p.stop(time.Second) })
	}
	wait.Wait()
	for _, r := range a.relays {
		r.close()
	}
	for _, f := range a.files {
		f.Close()
	}
}

// record puts together what was seen.
func (a *armRun) record(attempts []measure.Attempt, outages []measure.Outage) *measure.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &measure.Record{Layout: a.layout, Arm: a.arm, Attempts: attempts, Outages: outages, Exits: a.exits, Logged: maps.Clone(a.logged)}
	over := a.over.Sub(a.zero)
	for _, e := range a.events {
		e = e.Since(a.zero.Sub(a.base))
		// What processes believe of each other while all are being ended is no
		// part of the drill.
		belief := e.Kind == measure.OutlierChanged || e.Kind == measure.Known
		if !belief || a.over.IsZero() || e.At < over {
			r.Events = append(r.Events, e)
		}
	}
	r.Arrange()
	return r
}
