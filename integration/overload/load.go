//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// patience is how long a client waits for its byte.
	patience = 3 * time.Second
	// workers of the closed loop that finds the capacity.
	workers = 128
	// most is how many connections may be open at once; beyond, arrivals are lost
	// here, as they would be in a client that has no more descriptors.
	most = 8000
)

// level is what came of one rate.
type level struct {
	Of       float64       // multiple of the capacity; 0: closed loop
	Offered  int           // connections
	Served   int           // had their byte back within patience
	Meantime int           // of those, while arrivals still came
	Refused  int           // reset or refused
	TimedOut int           // had nothing within patience
	Lost     int           // not begun: too many were open
	Time     time.Duration // during which arrivals came
	P50, P99 time.Duration // of those served, from when they were due
	Late     time.Duration // the load's own lateness, 99th percentile
	All      time.Duration // until the last one was over
	Load     time.Duration // processor time of load and applications, in All
	Proxies  time.Duration // processor time of gateway and node proxies, likewise
}

// rate is how many were served a second while that was asked for: what is served when
// no more comes is a queue that was too long.
func (l level) rate() float64 { return float64(l.Meantime) / l.Time.Seconds() }

// tally collects what clients saw.
type tally struct {
	end              time.Time // of arrivals
	mu               sync.Mutex
	meantime         int
	took, late       []time.Duration
	refused, expired int
}

func (t *tally) add(due, begun time.Time, err error) {
	now := time.Now()
	took := now.Sub(due)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = append(t.late, begun.Sub(due))
	switch {
	case err == nil && took <= patience:
		t.took = append(t.took, took)
		if now.Before(t.end) {
			t.meantime++
		}
	case err == nil || errors.Is(err, os.ErrDeadlineExceeded):
		t.expired++
	default:
		t.refused++
	}
}

func (t *tally) level(of float64, d time.Duration) level {
	slices.Sort(t.took)
	slices.Sort(t.late)
	return level{Of: of, Offered: len(t.took) + t.refused + t.expired, Served: len(t.took), Meantime: t.meantime, Refused: t.refused, TimedOut: t.expired, Time: d,
		P50: quantile(t.took, 0.5), P99: quantile(t.took, 0.99), Late: quantile(t.late, 0.99)}
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1))]
}

// once connects, sends one byte and awaits it. The application closes first, so
// that the ports of this side are free again at once.
func once(entry string, until time.Time) error {
	d := net.Dialer{Deadline: until, KeepAlive: -1}
	c, err := d.Dial("tcp4", entry)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(until)
	b := []byte{1}
	if _, err := c.Write(b); err != nil {
		return err
	}
	if _, err := c.Read(b); err != nil {
		return err
	}
	c.Read(b) // the application's end
	return nil
}

// closed is the closed loop: what can be served.
func closed(ctx context.Context, entry string, d time.Duration) level {
	t := tally{end: time.Now().Add(d)}
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for ctx.Err() == nil && time.Now().Before(t.end) {
				begun := time.Now()
				t.add(begun, begun, once(entry, begun.Add(patience)))
			}
		})
	}
	all.Wait()
	return t.level(0, d)
}

// open offers rate connections per second, whatever comes back.
func open(ctx context.Context, entry string, of, rate float64, d time.Duration, rng *rand.Rand) level {
	began := time.Now()
	t := tally{end: began.Add(d)}
	var all sync.WaitGroup
	var inFlight atomic.Int64
	lost := 0
	for at := time.Duration(0); at < d && ctx.Err() == nil; at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second)) {
		due := began.Add(at)
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		if inFlight.Load() >= most {
			lost++
			continue
		}
		inFlight.Add(1)
		all.Go(func() {
			defer inFlight.Add(-1)
			begun := time.Now()
			t.add(due, begun, once(entry, due.Add(patience)))
		})
	}
	all.Wait()
	l := t.level(of, d)
	l.Offered += lost
	l.Lost = lost
	return l
}

// costed adds to what f offers what that cost.
func (w *world) costed(f func() level) (level, error) {
	meter, err := w.StartMeter()
	if err != nil {
		return level{}, err
	}
	began := time.Now()
	l := f()
	l.All = time.Since(began)
	l.Load, l.Proxies, err = meter.Ours()
	return l, err
}

// rest is how long nothing is offered between two levels.
const rest = time.Second

// curve offers every level to one path, each between two closed loops: what the machine
// can do changes from one minute to the next.
func (w *world) curve(ctx context.Context, p path) (*curve, error) {
	c := &curve{Path: p.name, About: p.about}
	rng := rand.New(rand.NewPCG(w.seed, 0))
	closed(ctx, p.entry, time.Second) // sessions and memory
	meter, err := w.StartMeter()
	if err != nil {
		return nil, err
	}
	loop := func() error {
		l, err := w.costed(func() level { return closed(ctx, p.entry, w.time/2) })
		if err != nil {
			return err
		}
		if l.Meantime == 0 { // and no level is a multiple of it
			return fmt.Errorf("%s: nothing was served within %v; logs are in %s", p.name, l.Time, w.Dir)
		}
		c.Levels = append(c.Levels, l)
		time.Sleep(rest)
		return nil
	}
	offer := func(of float64) (level, error) {
		capacity := c.Levels[len(c.Levels)-1].rate()
		return w.costed(func() level { return open(ctx, p.entry, of, of*capacity, w.time, rng) })
	}
	before, err := w.moved(ctx)
	if err != nil {
		return nil, err
	}
	if err := loop(); err != nil {
		return nil, err
	}
	for _, of := range w.levels {
		l, err := offer(of)
		if err != nil {
			return nil, err
		}
		c.Levels = append(c.Levels, l)
		time.Sleep(rest)
		if err := loop(); err != nil {
			return nil, err
		}
	}
	time.Sleep(rest)
	if c.After, err = offer(0.5); err != nil {
		return nil, err
	}
	after, err := w.moved(ctx)
	if err != nil {
		return nil, err
	}
	c.Moved = int(after - before)
	if c.Others, err = meter.Others(); err != nil {
		return nil, err
	}
	return c, context.Cause(ctx)
}
