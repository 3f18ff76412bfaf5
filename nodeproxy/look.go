package nodeproxy

import (
	"errors"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/nodeproxy/acceptqueue"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// run looks at the ports in use until ctx ends.
func (l *listeners) run() {
	tick := time.NewTimer(0)
	defer tick.Stop()
	for ticks := true; ; {
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
			if ticks {
				continue
			}
		case <-tick.C:
			if ticks = l.lookAll(time.Now()); !ticks {
				continue
			}
		}
		ticks = true
		tick.Reset(listenerLook)
	}
}

// lookAll looks at every port in use, and reports whether there is any.
func (l *listeners) lookAll(now time.Time) (any bool) {
	l.mu.RLock()
	list := make([]*watchedSocket, 0, len(l.active))
	for w := range l.active {
		list = append(list, w)
	}
	l.mu.RUnlock()
	for _, w := range list {
		if l.look(w, now) || l.rests(w, now) {
			any = true
		}
	}
	return any
}

// rests takes a port that nobody uses off the list, and reports whether somebody does.
func (l *listeners) rests(w *watchedSocket, now time.Time) (used bool) {
	recent := func() bool {
		return w.waiting.Load() > 0 || l.at(now)-w.used.Load() < int64(inUse)
	}
	if recent() || l.tell.isOut(w.key) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.isActive.Store(false); recent() {
		w.isActive.Store(true)
		return true
	}
	delete(l.active, w)
	return false
}

// hear looks at the ports whose listeners end, until the table is closed.
func (l *listeners) hear(s *sighted) {
	var ended []uint16
	failed := 0
	for {
		var err error
		ended, err = s.table.Next(ended[:0])
		lost := err != nil
		switch {
		case err == nil:
			failed = 0
		case errors.Is(err, sockdiag.ErrLost):
			l.metrics.lost.Inc()
		case errors.Is(err, os.ErrClosed):
			return
		default:
			failed++
			l.log.Debug().Err(err).Msg("closed listeners not reported by the kernel")
			pause(l.ctx, askAgain.Next(failed))
		}
		if !lost && len(ended) == 0 {
			continue
		}
		var list []*watchedSocket
		l.mu.RLock()
		for _, w := range l.ports {
			if w.from == s && (lost || slices.Contains(ended, w.at.Port())) {
				list = append(list, w)
			}
		}
		l.mu.RUnlock()
		now := time.Now()
		for _, w := range list {
			l.look(w, now)
		}
	}
}

// look asks for the listener of one port, and tells what has changed. It reports whether
// somebody waits in its queue.
func (l *listeners) look(w *watchedSocket, now time.Time) (waits bool) {
	s := w.from
	s.mu.Lock()
	defer s.mu.Unlock()
	w.full = false
	if w.dropped || s.closed || now.Before(s.again) {
		return false
	}
	found, ok, err := s.table.Listener(w.at)
	if err != nil {
		l.fails(s, err, now)
		return false
	}
	s.failed = 0
	switch before := w.cookie; {
	case !ok && before != 0:
		w.cookie = 0
		l.release(w)
		l.metrics.suspected.WithLabelValues("gone").Inc()
		l.tell.gone(w.key)
	case ok && before != found.Cookie:
		w.cookie = found.Cookie
		l.release(w)
		l.tell.listens(w.key)
	}
	if !ok {
		return false
	}
	w.full, w.looked = found.Queue > found.Backlog, now
	wanted := w.waiting.Load() > 0 && l.at(now)-w.answered.Load() >= int64(waitsLong)
	verdict := w.queue.Look(now, acceptqueue.Look{Cookie: found.Cookie, Queue: found.Queue, Backlog: found.Backlog, Wanted: wanted})
	if verdict == acceptqueue.Count {
		verdict = l.count(w, found, now)
	}
	switch verdict {
	case acceptqueue.Stalled:
		l.metrics.suspected.WithLabelValues("stalled").Inc()
		l.tell.stall(w.key)
	case acceptqueue.Drained, acceptqueue.Replaced:
		l.tell.unstall(w.key)
	default:
		if w.queue.Stalled() && !l.tell.isStalled(w.key) {
			l.tell.stall(w.key) // it was not declared for a moment, and forgotten
		}
	}
	return !w.queue.Empty()
}

// count takes a census of a queue that does not get shorter. The caller holds the
// sighted's mu.
func (l *listeners) count(w *watchedSocket, found sockdiag.Listener, now time.Time) acceptqueue.Verdict {
	if l.tell.lately(acceptqueue.Stall) {
		w.queue.Interrupt() // what has too little processor time is not only we
		return acceptqueue.Nothing
	}
	last := l.census.Load()
	if l.at(now)-last < int64(censusEvery) || !l.census.CompareAndSwap(last, l.at(now)) {
		return acceptqueue.Nothing // at the next look
	}
	census, err := takeCensus(w.from.table, found)
	if err != nil {
		l.fails(w.from, err, now)
		return acceptqueue.Nothing
	}
	l.metrics.censuses.Inc()
	return w.queue.Census(now, census)
}

func takeCensus(t sockets, l sockdiag.Listener) (c acceptqueue.Census, err error) {
	lengths := func() map[uint64]uint32 {
		group, err2 := t.Group(l)
		err = errors.Join(err, err2)
		n := make(map[uint64]uint32, len(group))
		for _, g := range group {
			n[g.Cookie] = g.Queue
		}
		return n
	}
	c.Before = lengths()
	list, err2 := t.Waiting(l)
	err = errors.Join(err, err2)
	c.Waiting = map[uint64]struct{}{}
	for _, cookie := range list {
		c.Waiting[cookie] = struct{}{}
	}
	c.After = lengths()
	return c, err
}

// fails has a namespace asked again after a pause, or never if its table was closed. Ports that were stalled are judged by
// connects meanwhile. The caller holds the sighted's mu.
func (l *listeners) fails(s *sighted, err error, now time.Time) {
	s.failed++
	if s.closed = errors.Is(err, os.ErrClosed); !s.closed {
		l.unseen(err)
	}
	pause := askAgain.Next(s.failed)
	s.again = now.Add(pause)
	l.mu.RLock()
	var list []*watchedSocket
	for _, w := range l.ports {
		if w.from == s {
			list = append(list, w)
		}
	}
	l.mu.RUnlock()
	for _, w := range list {
		l.release(w)
		if !s.closed {
			time.AfterFunc(pause, func() { l.use(w.key) }) // looks at it: what happens meanwhile is missed
		}
	}
}

// listenerMetrics count what is suspected by what is seen of sockets.
type listenerMetrics struct {
	suspected      *prometheus.CounterVec
	censuses, lost prometheus.Counter
}

func newListenerMetrics(r prometheus.Registerer, seen func() float64) *listenerMetrics {
	m := &listenerMetrics{
		suspected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_listener_suspicions_total", Help: "Ports of local applications suspected because of their sockets in the kernel: gone (no listener; probed immediately), stalled (the accept queue does not drain)."}, []string{"why"}),
		censuses:  prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_listener_censuses_total", Help: "Times that the connections in an accept queue were counted because it did not get shorter."}),
		lost:      prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_listener_events_lost_total", Help: "Times that the kernel's events of closed sockets overflowed. All ports were checked instead."}),
	}
	m.suspected.WithLabelValues("gone")
	m.suspected.WithLabelValues("stalled")
	r.MustRegister(m.suspected, m.censuses, m.lost, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_listeners_watched", Help: "Declared ports of local workloads with a visible listening socket. If the kernel shows none it is 0, and only connects find faults."}, seen))
	return m
}
