package pods

import (
	"fmt"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

const (
	// workAtOnce is how many namespaces something is done in at once: most of the time the kernel waits, for all processors to
	// have seen the rules. Pods that were slow last have places of their own.
	workAtOnce, slowAtOnce = 16, 2
	// patience is how long one may take, of what takes milliseconds on a machine that is not busy, until it is slow: somebody in
	// the pod may have the kernel go through as much as he likes.
	patience = time.Second
	// slowTold is for how long a pod that was slow is told of as a problem.
	slowTold = time.Minute
)

// slowAgain are the looks at pods that are slow.
var slowAgain = backoff.Backoff{First: time.Second, Limit: time.Minute}

// works are what is done in pods just now: one thing at a time in each, which owns the pod's captured meanwhile, and beside
// each other. Whoever has been patient with one for long enough has its place taken by the next. The zero value is ready.
// Safe for concurrent use.
type works struct {
	done  func() // called when one has ended; nil: nobody wants to know
	all   sync.WaitGroup
	mu    sync.Mutex
	quick chan struct{} // places that are taken
	slow  chan struct{}
	now   map[string]*work     // by workload UID
	slows map[string]*slowness // likewise
}

// work is one thing that is done in a pod.
type work struct {
	what  string
	ns    podns.ID
	began time.Time     // zero while it waits for a place
	ended chan struct{} // closed when it has
}

// slowness is what is known of a pod in which something took too long.
type slowness struct {
	what  string
	took  time.Duration
	last  time.Time // when that was
	tries int       // how many have, one after the other
	again time.Time // when it is looked at again
}

// begin has f done in the pod of a workload, in which nothing is done; what says so, as in "the look at its rules".
func (w *works) begin(uid, what string, ns podns.ID, f func()) {
	w.mu.Lock()
	if w.now == nil {
		w.now, w.slows = map[string]*work{}, map[string]*slowness{}
		w.quick, w.slow = make(chan struct{}, workAtOnce), make(chan struct{}, slowAtOnce)
	}
	places := w.quick
	if s := w.slows[uid]; s != nil && s.tries > 0 {
		places = w.slow
	}
	x := &work{what: what, ns: ns, ended: make(chan struct{})}
	w.now[uid] = x
	w.mu.Unlock()
	w.all.Go(func() {
		places <- struct{}{}
		leave := sync.OnceFunc(func() { <-places })
		w.mu.Lock()
		x.began = time.Now()
		w.mu.Unlock()
		late := time.AfterFunc(patience, func() {
			if places == w.quick {
				leave()
			}
		})
		f()
		late.Stop()
		leave()
		w.end(uid, x)
	})
}

// end notes that x has ended.
func (w *works) end(uid string, x *work) {
	w.mu.Lock()
	now := time.Now()
	took := now.Sub(x.began)
	delete(w.now, uid)
	s := w.slows[uid]
	switch {
	case took >= patience:
		if s == nil {
			s = &slowness{}
			w.slows[uid] = s
		}
		s.tries++
		s.what, s.took, s.last = x.what, took, now
		if s.again = now; s.tries > 1 { // once is another pod's doing, or the machine's
			s.again = now.Add(max(took, slowAgain.Next(s.tries-1)))
		}
	case s != nil && now.Sub(s.last) >= slowTold:
		delete(w.slows, uid)
	case s != nil:
		s.tries, s.again = 0, time.Time{}
	}
	w.mu.Unlock()
	close(x.ended)
	if w.done != nil {
		w.done()
	}
}

// busy reports whether something is done in the pod of a workload.
func (w *works) busy(uid string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now[uid] != nil
}

// rests reports whether a pod is not to be looked at yet, as it was slow.
func (w *works) rests(uid string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slows[uid]
	return s != nil && now.Before(s.again)
}

// in reports whether something is done in a namespace.
func (w *works) in(ns podns.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.now {
		if x.ns == ns {
			return true
		}
	}
	return false
}

// list is what is done just now.
func (w *works) list() (out []*work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.now {
		out = append(out, x)
	}
	return out
}

// over reports whether x has ended, or has taken so long that nobody waits for it.
func (w *works) over(x *work, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case <-x.ended:
		return true
	default:
		return !x.began.IsZero() && now.Sub(x.began) >= patience
	}
}

// wait returns when all that was begun has ended.
func (w *works) wait() { w.all.Wait() }

// forget drops what is known of pods that are not here.
func (w *works) forget(here func(uid string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid := range w.slows {
		if !here(uid) && w.now[uid] == nil {
			delete(w.slows, uid)
		}
	}
}

// doing says what is done in the pod of a workload, and for how long; "" if nothing is.
func (w *works) doing(uid string, now time.Time) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.now[uid]
	switch {
	case x == nil:
		return ""
	case x.began.IsZero():
		return x.what + " waits for those of other pods"
	}
	return fmt.Sprintf("%s has taken %v so far", x.what, now.Sub(x.began).Round(time.Millisecond))
}

// problems are the pods that were slow lately.
func (w *works) problems(now time.Time) map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]string{}
	for uid, s := range w.slows {
		if now.Sub(s.last) < slowTold || now.Before(s.again) {
			out[uid] = fmt.Sprintf("is slow: %s took %v, where milliseconds are usual", s.what, s.took.Round(time.Millisecond))
		}
	}
	for uid, x := range w.now {
		if took := now.Sub(x.began); !x.began.IsZero() && took >= patience {
			out[uid] = fmt.Sprintf("is slow: %s has taken %v so far, where milliseconds are usual", x.what, took.Round(time.Millisecond))
		}
	}
	for uid := range out {
		out[uid] += "; others do not wait for it, and it is looked at less often: " + slowRemedy
	}
	return out
}

const slowRemedy = "see which of its containers may change its network (NET_ADMIN) and fills its nftables, addresses or sockets, and restart the pod; of several that are slow begin with the one that takes longest: the kernel has no time for the others; if all are, give the node more CPU"
