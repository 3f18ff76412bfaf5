//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/integration/fleet"
)

const (
	settle     = 50 * time.Millisecond // what earlier work leaves behind
	warmTime   = 20 * time.Second      // until a variant carries a connection
	minForeign = time.Second / 2       // below, ticks of 10 ms say nothing of others
)

// session is one load at a generator.
type session struct {
	control net.Conn
	in      *bufio.Reader
}

// begin returns when the load's connections are open.
func (w *world) begin(ctx context.Context, v *variant, r request) (*session, error) {
	r.Target = v.target
	control, err := net.Dial("unix", w.socket(v.load))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { control.Close() })
	s := &session{control, bufio.NewReader(control)}
	err = json.NewEncoder(control).Encode(r)
	if err == nil {
		_, err = s.in.ReadBytes('\n')
	}
	if err != nil {
		control.Close()
	}
	return s, err
}

// run returns when the load is done; what it opened stays open until close.
func (s *session) run() (r reply, err error) {
	if _, err = fmt.Fprintln(s.control); err == nil {
		err = json.NewDecoder(s.in).Decode(&r)
	}
	return r, err
}

func (s *session) close() { s.control.Close() }

// measure takes one sample.
func (w *world) measure(ctx context.Context, v *variant, l load) (sample, error) {
	take := w.warm
	switch l.fresh {
	case freshClient:
		take = w.cold
	case freshAll:
		take = w.idle
	}
	s, err := take(ctx, v, l)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return s, fmt.Errorf("%s on %s: %w", l.Name, v.Name, err)
	}
	return s, nil
}

// warm measures processor time on sessions that are there.
func (w *world) warm(ctx context.Context, v *variant, l load) (s sample, err error) {
	if err := w.await(ctx, v); err != nil {
		return s, err
	}
	return w.processor(ctx, v, l.Request)
}

// cold measures first connections of client proxies that have a certificate and
// no session on this way: each was just started and has carried one connection on
// its other way. The sample is the sum of their processor times, and the
// quantiles of theirs.
func (w *world) cold(ctx context.Context, v *variant, l load) (s sample, err error) {
	s.CPU = map[string]time.Duration{}
	var firsts []time.Duration
	for range coldCount {
		if err := w.forget(ctx, v); err != nil {
			return s, err
		}
		one, err := w.processor(ctx, v, l.Request)
		if err != nil {
			return s, err
		}
		for role, used := range one.CPU {
			s.CPU[role] += used
		}
		s.Reply.Errors += one.Reply.Errors
		s.Reply.First += one.Reply.First
		s.Reply.Ops += one.Reply.Ops
		s.Reply.Seconds += one.Reply.Seconds
		s.Foreign = max(s.Foreign, one.Foreign)
		firsts = append(firsts, time.Duration(one.Reply.P50*float64(time.Microsecond)))
	}
	slices.Sort(firsts)
	s.Reply.P50, s.Reply.P99 = quantile(firsts, 0.50), quantile(firsts, 0.99)
	return s, nil
}

// forget leaves a variant's client proxy without sessions on the variant's way.
func (w *world) forget(ctx context.Context, v *variant) error {
	if len(v.roles) == 0 {
		return nil
	}
	if err := w.restart(v.roles[0].process); err != nil || v.other == nil {
		return err
	}
	return w.await(ctx, v.other)
}

// processor measures processor time during a load.
func (w *world) processor(ctx context.Context, v *variant, r request) (s sample, err error) {
	run, err := w.begin(ctx, v, r)
	if err != nil {
		return s, err
	}
	defer run.close()
	m, err := w.startMeter(v)
	if err != nil {
		return s, err
	}
	if s.Reply, err = run.run(); err != nil {
		return s, err
	}
	s.CPU, s.Foreign, err = m.stop()
	return s, err
}

// idle measures memory: of fresh roles after one connection, and with all.
func (w *world) idle(ctx context.Context, v *variant, l load) (s sample, err error) {
	for _, r := range slices.Backward(v.roles) {
		if err := w.restart(r.process); err != nil {
			return s, err
		}
	}
	if err := w.await(ctx, v); err != nil {
		return s, err
	}
	time.Sleep(w.rest)
	if s.Base, s.InsideBase, err = w.memory(v); err != nil {
		return s, err
	}
	run, err := w.begin(ctx, v, l.Request)
	if err != nil {
		return s, err
	}
	defer run.close()
	if s.Reply, err = run.run(); err != nil {
		return s, err
	}
	time.Sleep(w.rest)
	s.RSS, s.Inside, err = w.memory(v)
	return s, err
}

// await returns when the variant carries a connection. What fails until then is
// no error: after a restart somewhere peers may take a moment.
func (w *world) await(ctx context.Context, v *variant) error {
	var last reply
	for end := time.Now().Add(warmTime); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(settle) {
		run, err := w.begin(ctx, v, request{Kind: "connect", Streams: 1})
		if err != nil {
			return err
		}
		last, err = run.run()
		run.close()
		if err != nil {
			return err
		}
		if last.Errors == 0 {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("no connection within %v: %s%s", warmTime, last.First, w.logs(v)))
}

// memory returns what is resident, by role, and what ours say of themselves.
func (w *world) memory(v *variant) (rss map[string]int64, insides map[string]inside, err error) {
	rss, insides = map[string]int64{}, map[string]inside{}
	for _, r := range v.roles {
		if rss[r.Name], err = rssOf(r.process.PID()); err != nil {
			return nil, nil, err
		}
	}
	for _, r := range v.roles {
		in, ok, err := w.lookInside(r.process)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			insides[r.Name] = in
		}
	}
	return rss, insides, nil
}

// meter is the processor time of a variant's processes since a moment.
type meter struct {
	pids  map[string]int
	since map[string]time.Duration
	begun time.Time
	busy  time.Duration
}

func (w *world) startMeter(v *variant) (*meter, error) {
	m := &meter{pids: map[string]int{"app": v.app.PID(), "load": v.load.PID(), "self": os.Getpid()}}
	for _, r := range v.roles {
		m.pids[r.Name] = r.process.PID()
	}
	time.Sleep(settle)
	var err error
	if m.since, err = m.read(); err != nil {
		return nil, err
	}
	m.begun = time.Now()
	m.busy, err = fleet.Busy()
	return m, err
}

func (m *meter) read() (map[string]time.Duration, error) {
	used := map[string]time.Duration{}
	for name, pid := range m.pids {
		t, err := fleet.CPUOf(pid)
		if err != nil {
			return nil, err
		}
		used[name] = t
	}
	return used, nil
}

// stop returns the time by role, and how many processors others had meanwhile.
func (m *meter) stop() (used map[string]time.Duration, foreign float64, err error) {
	time.Sleep(settle) // connections are still being closed
	if used, err = m.read(); err != nil {
		return nil, 0, err
	}
	all, err := fleet.Busy()
	if err != nil {
		return nil, 0, err
	}
	others := all - m.busy
	for name := range used {
		used[name] -= m.since[name]
		others -= used[name]
	}
	delete(used, "self")
	if took := time.Since(m.begun); took > minForeign {
		foreign = max(0, others.Seconds()/took.Seconds())
	}
	return used, foreign, nil
}
