//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// tally counts connections by how they ended.
type tally struct {
	complete, aborted int
	failed            []string // neither side broke it off
	wrong             []string // truncated or corrupt, whoever broke it off
	bytes             int64
}

func (t *tally) add(o *tally) {
	t.complete += o.complete
	t.aborted += o.aborted
	t.failed = append(t.failed, o.failed...)
	t.wrong = append(t.wrong, o.wrong...)
	t.bytes += o.bytes
}

// client and server note what one end of e saw. Connections are counted once, by
// their clients.
func (t *tally) client(e exchange, o outcome) {
	switch {
	case t.misled("client", e, o):
	case e.ClientAborts != never || e.ServerAborts != never:
		t.aborted++
	case o.err != nil:
		t.failed = append(t.failed, fmt.Sprintf("client: %v", o.err))
	default:
		t.complete++
		t.bytes += int64(e.Up) + int64(e.Down)
	}
}

func (t *tally) server(e exchange, o outcome) {
	switch {
	case t.misled("server", e, o):
	case e.Seed == 0: // the client was gone before it had said what it wanted
	case e.ClientAborts == never && e.ServerAborts == never && o.err != nil:
		t.failed = append(t.failed, fmt.Sprintf("server: %v", o.err))
	}
}

func (t *tally) misled(side string, e exchange, o outcome) bool {
	if !errors.Is(o.err, errTruncated) && !errors.Is(o.err, errCorrupt) {
		return false
	}
	t.wrong = append(t.wrong, fmt.Sprintf("%s: %v (client aborts at %d, server at %d of %d)", side, o.err, int32(e.ClientAborts), int32(e.ServerAborts), e.Up+e.Down))
	return true
}

// traffic opens rate connections per second for d, while pods come and go, and
// returns when all of them have ended. With hold, clients keep theirs open for so long.
func (m *mesh) traffic(ctx context.Context, rate float64, d, hold time.Duration) tally {
	rng := rand.New(rand.NewPCG(m.seed, uint64(d)))
	var (
		mu    sync.Mutex
		t     tally
		conns sync.WaitGroup
	)
	churning, stop := context.WithCancel(ctx)
	churned := make(chan error)
	go func() { churned <- m.churn(churning, rand.New(rand.NewPCG(rng.Uint64(), 0))) }()
	began := time.Now()
	for due := time.Duration(0); due < d && ctx.Err() == nil; due += time.Duration(rng.ExpFloat64() / rate * float64(time.Second)) {
		time.Sleep(time.Until(began.Add(due)))
		e, to := draw(rng, m.abort), m.listeners[rng.IntN(len(m.listeners))]
		conns.Go(func() {
			var o outcome
			if c, err := net.Dial("tcp4", to.String()); err != nil {
				o.err = err
			} else {
				o = client(c.(*net.TCPConn), e, hold)
			}
			mu.Lock()
			defer mu.Unlock()
			t.client(e, o)
		})
	}
	stop()
	if err := <-churned; err != nil {
		t.failed = append(t.failed, err.Error())
	}
	conns.Wait()
	time.Sleep(time.Second) // the servers' last words
	seen := m.apps.take()
	t.add(&seen)
	return t
}
