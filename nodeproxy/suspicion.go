package nodeproxy

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// What a witness makes of what the kernel shows of an application's sockets; see
// [listeners]. A listener that has vanished is a reason to ask and no more: only what
// the connect finds is an outcome, so one that hands its port over (SO_REUSEPORT, socket
// activation) moves nothing. A queue that does not drain is an outcome, and ends by
// draining: a connect succeeds as long as there is room in the queue.

// stalledReason is why a port is out whose accept queue does not drain. It stands in facts
// and logs alone: a connection that comes all the same is made, as nobody can tell a
// client that it will not be accepted.
const stalledReason header.Reason = "stalled"

// suspectPause is between the questions that a suspicion asks: a listener that is made
// anew is there by then.
const suspectPause = 10 * time.Millisecond

// errStalled is instead of a connect to an application that accepts nobody.
var errStalled = errors.New("the accept queue does not drain")

// gone asks an application whose listener has vanished as often as it takes to eject it.
func (w *witness) gone(k health.Key) {
	w.mu.Lock()
	if w.declared(k) == nil {
		w.mu.Unlock()
		return
	}
	w.suspected[k] = w.threshold
	w.mu.Unlock()
	w.watch(k)
}

// abandoned asks an application whose client has withdrawn a connect that took long. That is
// no outcome, and would have been one, if it had come to its timeout: until the
// application answers somebody it is remembered; see unanswered.
func (w *witness) abandoned(k health.Key) {
	w.mu.Lock()
	if w.declared(k) == nil {
		w.mu.Unlock()
		return
	}
	w.left[k] = min(w.left[k]+1, w.threshold)
	w.mu.Unlock()
	w.watch(k)
}

// unanswered takes in that a question has timed out: so would those connects have that were
// withdrawn before, and they count as failures as well.
func (w *witness) unanswered(k health.Key) {
	w.mu.Lock()
	n := w.left[k]
	delete(w.left, k)
	w.mu.Unlock()
	for range n {
		w.mu.Lock()
		a := w.tracker.Begin(k, time.Now())
		w.mu.Unlock()
		if w.observe(k, a, health.Failure, header.ReasonTimeout) {
			return
		}
	}
}

// listens asks an application that is out and listens again.
func (w *witness) listens(k health.Key) {
	if w.isOut(k) {
		w.watch(k)
	}
}

// isOut implements [suspicious].
func (w *witness) isOut(k health.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tracker.State(k, time.Now()).Phase != health.Healthy
}

// lately implements [suspicious].
func (w *witness) lately(d time.Duration) bool { return w.late(time.Now().Add(-d)) }

// stall ejects a port whose accept queue does not drain: what was seen for so long is as
// good as failures in a row. Where nothing is ever ejected it only weighs less.
func (w *witness) stall(k health.Key) {
	w.mu.Lock()
	if w.declared(k) == nil {
		w.mu.Unlock()
		return
	}
	w.stalled[k] = true
	w.mu.Unlock()
	for range w.threshold {
		w.mu.Lock()
		a := w.tracker.Begin(k, time.Now())
		w.mu.Unlock()
		if w.observe(k, a, health.Failure, stalledReason) {
			return
		}
	}
}

// unstall has an application asked that is no longer stalled, or cannot be seen any more.
func (w *witness) unstall(k health.Key) {
	w.mu.Lock()
	delete(w.stalled, k)
	delete(w.hung, k)
	w.mu.Unlock()
	if w.isOut(k) {
		w.watch(k)
	}
}

func (w *witness) isStalled(k health.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled[k]
}

// askOnce counts one question off that a suspicion of k asks, and reports whether the
// next one is due at once.
func (w *witness) askOnce(k health.Key, answered bool) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.suspected[k]
	if n <= 1 || answered {
		delete(w.suspected, k)
		return false
	}
	w.suspected[k] = n - 1
	return true
}

// pauseSuspected waits before all but the first of these questions.
func (w *witness) pauseSuspected(ctx context.Context, k health.Key) {
	w.mu.Lock()
	n, ok := w.suspected[k]
	w.mu.Unlock()
	if ok && n < w.threshold {
		pause(ctx, suspectPause)
	}
}

// watchListeners has the listening sockets of the workloads watched that this process
// serves: of those that are captured in their namespaces, of the others in the process's
// own, where their inbound listeners are.
func (p *Proxy) watchListeners() {
	l := p.witness.sockets
	if l == nil {
		return
	}
	l.revising.Lock()
	defer l.revising.Unlock()
	served := map[string]sockdiag.Namespace{}
	p.mu.Lock()
	for uid := range p.inbounds {
		served[uid] = nil
	}
	p.mu.Unlock()
	for _, h := range p.pods.List() {
		served[h.UID()] = h.Namespace()
	}
	l.keep(func(uid string) bool { _, ok := served[uid]; return ok })
	for uid, ns := range served {
		l.watch(uid, ns)
	}
	snap := p.store.Current()
	l.revise(func(uid string) (list []watchedPort) {
		w := snap.Workload(uid)
		if w == nil || len(w.Addresses) == 0 {
			return nil
		}
		for _, k := range keysOf(snap, w) {
			list = append(list, watchedPort{k, netip.AddrPortFrom(w.Addresses[0], k.Port)})
		}
		return list
	})
}
