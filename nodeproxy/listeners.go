package nodeproxy

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/nodeproxy/acceptqueue"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// sockets is the TCP sockets of one network namespace: a *sockdiag.Table, outside tests.
type sockets interface {
	Listener(at netip.AddrPort) (sockdiag.Listener, bool, error)
	Group(l sockdiag.Listener) ([]sockdiag.Listener, error)
	Waiting(l sockdiag.Listener) ([]uint64, error)
	Next(ports []uint16) ([]uint16, error)
	Close()
}

// suspicious is told what is seen of a port: a *witness. It asks the application before
// it says anything of it, except of a stall, which is seen and cannot be asked for.
type suspicious interface {
	gone(health.Key)             // its listener, once seen, has vanished
	listens(health.Key)          // there is a listener, and there was none or another one
	stall(health.Key)            // nobody is accepted any more
	unstall(health.Key)          // that has ended, one way or another
	isOut(health.Key) bool       // is it ejected?
	isStalled(health.Key) bool   // was it told stall, and does it know that still?
	lately(d time.Duration) bool // was this process itself late meanwhile?
}

// listeners watches the listening sockets of local applications, so that the witness
// knows of a fault before a connection meets it. The end of a listener is an event;
// ports in use are looked at each listenerLook: those that were dialed within inUse, have
// somebody in their queue, or are out. At rest nothing is asked.
//
// Where the kernel shows nothing (a sandbox with its own TCP, no inet_diag) nothing is
// ever suspected.
type listeners struct {
	open    func(sockdiag.Namespace) (sockets, error)
	tell    suspicious
	log     zerolog.Logger
	metrics *listenerMetrics
	ctx     context.Context // ends the loop; set once
	began   time.Time       // what atomic times count from: the clock of the machine may be set
	wake    chan struct{}
	wg      sync.WaitGroup

	revising sync.Mutex // one watch, unwatch, keep or revise at a time

	mu     sync.RWMutex        // held for nothing that waits; behind that of a sighted
	views  map[string]*sighted // by workload UID
	ports  map[health.Key]*watchedSocket
	active map[*watchedSocket]struct{}
	blind  bool // it was said that nothing is seen

	census atomic.Int64 // when the last one was taken, in nanoseconds since began
}

const (
	listenerLook = 25 * time.Millisecond
	inUse        = time.Second
	// waitsLong is how long nobody's connect was answered while one waits: it takes
	// microseconds.
	waitsLong = 10 * time.Millisecond
	// lookedLately bounds how often a port is looked at for connects that wait.
	lookedLately = 2 * time.Millisecond
	// censusEvery bounds what censuses cost: 1.4 ms of CPU each, on a machine with 262144
	// buckets of connections.
	censusEvery = 20 * time.Millisecond
)

// askAgain is the pause before a namespace is asked again after an error. A kernel without sock_diag has none: there the table
// cannot be opened.
var askAgain = backoff.Backoff{First: 500 * time.Millisecond, Limit: 30 * time.Second}

// sighted is a namespace that is watched, for one workload or, if it is the process's
// own, for several.
type sighted struct {
	ns   sockdiag.Namespace
	stop func() bool // closing table with the process
	uses int         // workloads; listeners.mu guards it

	mu     sync.Mutex // one look at a time: what is told is told in order
	table  sockets
	failed int       // questions in a row
	again  time.Time // after an error: not asked before
	closed bool      // asked no more
}

// watchedSocket is one declared port of a local workload.
type watchedSocket struct {
	key  health.Key
	uid  string
	at   netip.AddrPort
	from *sighted

	used     atomic.Int64 // of the last dial, in nanoseconds since listeners.began
	answered atomic.Int64 // of the last that was answered, or began to wait alone
	waiting  atomic.Int32 // dials
	isActive atomic.Bool

	// sighted.mu guards these.
	dropped bool
	cookie  uint64 // of the listener at the last look; 0: none
	full    bool   // its queue was, then
	looked  time.Time
	queue   acceptqueue.Queue
}

// watchedPort is where an application listens.
type watchedPort struct {
	key health.Key
	at  netip.AddrPort
}

func newListeners(ctx context.Context, open func(sockdiag.Namespace) (sockets, error), tell suspicious, r prometheus.Registerer, log zerolog.Logger) *listeners {
	l := &listeners{open: open, tell: tell, log: log, ctx: ctx, began: time.Now(), wake: make(chan struct{}, 1), views: map[string]*sighted{}, ports: map[health.Key]*watchedSocket{}, active: map[*watchedSocket]struct{}{}}
	l.metrics = newListenerMetrics(r, l.seen)
	return l
}

// at is now, as atomic times are kept.
func (l *listeners) at(now time.Time) int64 { return int64(now.Sub(l.began)) }

// start begins to look, until ctx ends. The caller then calls wait.
func (l *listeners) start() {
	if l != nil {
		l.wg.Go(l.run)
	}
}

// openSockets is what listeners open, outside tests.
func openSockets(ns sockdiag.Namespace) (sockets, error) { return sockdiag.Open(ns) }

// watch begins to watch the listeners of a workload in a namespace; nil is the
// process's own, where several are told apart by their addresses. A namespace of before is let
// go. Its ports are those of the next revise. The caller of watch, unwatch, keep and
// revise holds revising.
func (l *listeners) watch(uid string, ns sockdiag.Namespace) {
	if l.ctx.Err() != nil {
		return
	}
	var s *sighted
	l.mu.RLock()
	before := l.views[uid]
	for _, other := range l.views {
		if ns == nil && other.ns == nil {
			s = other
		}
	}
	l.mu.RUnlock()
	switch {
	case before == nil:
	case before.ns == ns:
		return
	default: // the pod has another namespace now
		l.unwatch(uid)
	}
	if s == nil {
		table, err := l.open(ns)
		if err != nil {
			l.unseen(err)
			return
		}
		s = &sighted{ns: ns, table: table, stop: context.AfterFunc(l.ctx, table.Close)}
		l.wg.Go(func() { l.hear(s) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.uses++
	l.views[uid] = s
}

// unseen says once that applications are judged by connects alone.
func (l *listeners) unseen(err error) {
	l.mu.Lock()
	said := l.blind
	l.blind = true
	l.mu.Unlock()
	if !said {
		l.log.Warn().Err(err).Msg("listening sockets cannot be watched: faults of local applications are found by connects alone")
	}
}

// keep unwatches all workloads but these.
func (l *listeners) keep(served func(uid string) bool) {
	var ended []string
	l.mu.RLock()
	for uid := range l.views {
		if !served(uid) {
			ended = append(ended, uid)
		}
	}
	l.mu.RUnlock()
	for _, uid := range ended {
		l.unwatch(uid)
	}
}

// unwatch ends that, and closes what keeps the namespace alive.
func (l *listeners) unwatch(uid string) {
	l.mu.Lock()
	s := l.views[uid]
	delete(l.views, uid)
	if s != nil {
		s.uses--
	}
	last := s != nil && s.uses == 0
	l.mu.Unlock()
	if s == nil {
		return
	}
	l.drop(func(w *watchedSocket) bool { return w.uid == uid })
	if last {
		s.stop()
		s.table.Close()
	}
}

// revise takes in which ports workloads have now.
func (l *listeners) revise(portsOf func(uid string) []watchedPort) {
	want := map[watchedPort]string{}
	l.mu.RLock()
	for uid := range l.views {
		for _, p := range portsOf(uid) {
			want[p] = uid
		}
	}
	l.mu.RUnlock()
	l.drop(func(w *watchedSocket) bool { _, ok := want[watchedPort{w.key, w.at}]; return !ok })
	var added []*watchedSocket
	l.mu.Lock()
	for p, uid := range want {
		if l.ports[p.key] == nil {
			w := &watchedSocket{key: p.key, uid: uid, at: p.at, from: l.views[uid]}
			l.ports[p.key] = w
			added = append(added, w)
		}
	}
	l.mu.Unlock()
	now := time.Now()
	for _, w := range added {
		l.look(w, now)
	}
}

func (l *listeners) drop(which func(*watchedSocket) bool) {
	var dropped []*watchedSocket
	l.mu.Lock()
	for k, w := range l.ports {
		if which(w) {
			delete(l.ports, k)
			delete(l.active, w)
			dropped = append(dropped, w)
		}
	}
	l.mu.Unlock()
	for _, w := range dropped {
		w.from.mu.Lock()
		w.dropped = true
		l.release(w)
		w.from.mu.Unlock()
	}
}

// release ends a stall that nobody looks at any more; the caller holds the sighted's mu.
func (l *listeners) release(w *watchedSocket) {
	if w.queue.Stalled() {
		l.tell.unstall(w.key)
	}
	w.queue = acceptqueue.Queue{}
}

// use has a port looked at for a while.
func (l *listeners) use(k health.Key) *watchedSocket {
	if l == nil {
		return nil
	}
	l.mu.RLock()
	w := l.ports[k]
	l.mu.RUnlock()
	if w == nil {
		return nil
	}
	w.used.Store(l.at(time.Now()))
	if w.isActive.Load() {
		return w
	}
	l.mu.Lock()
	if l.ports[k] == w {
		w.isActive.Store(true)
		l.active[w] = struct{}{}
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return w
}

// dialling notes that somebody connects to a port; the caller calls what it gets when
// that was answered, or is given up.
func (l *listeners) dialling(k health.Key) (ended func(answered bool)) {
	w := l.use(k)
	if w == nil {
		return func(bool) {}
	}
	if w.waiting.Add(1) == 1 {
		w.answered.Store(l.at(time.Now()))
	}
	return func(answered bool) {
		if answered {
			w.answered.Store(l.at(time.Now()))
		}
		w.waiting.Add(-1)
	}
}

// full reports whether the accept queue of a port has no room, as it was lookedLately ago at most.
func (l *listeners) full(k health.Key) bool {
	w := l.use(k)
	if w == nil {
		return false
	}
	now := time.Now()
	w.from.mu.Lock()
	stale := now.Sub(w.looked) > lookedLately
	w.from.mu.Unlock()
	if stale {
		l.look(w, now)
	}
	w.from.mu.Lock()
	defer w.from.mu.Unlock()
	return w.full
}

// seen counts the ports whose listener was there at the last look.
func (l *listeners) seen() (n float64) {
	l.mu.RLock()
	list := make([]*watchedSocket, 0, len(l.ports))
	for _, w := range l.ports {
		list = append(list, w)
	}
	l.mu.RUnlock()
	for _, w := range list {
		w.from.mu.Lock()
		if w.cookie != 0 && w.from.failed == 0 {
			n++
		}
		w.from.mu.Unlock()
	}
	return n
}

// wait returns when everything has ended, after ctx has.
func (l *listeners) wait() {
	if l != nil {
		l.wg.Wait()
	}
}
