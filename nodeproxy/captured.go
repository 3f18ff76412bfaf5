package nodeproxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// captures are the local workloads that are captured in their network namespaces, and those
// that are to be. Its goroutine is follow's; what it holds ends with its workload, its
// sandbox or the process. Safe for concurrent use.
type captures struct {
	p       *Proxy
	cfg     Capture
	finder  podns.Finder
	unfound string         // why namespaces could not be looked for last; follow's alone
	leaving sync.WaitGroup // drains of what is captured no more
	sources sources
	first   atomic.Bool // all workloads that were there have been looked for once

	mu      sync.Mutex
	held    map[string]*captured // by workload UID
	failing map[string]*lack
}

// captured is one workload in its namespace.
type captured struct {
	uid     string
	address netip.Addr // the first of the workload
	place   place
	rules   capture.Rules
	in      *inbound
	outs    []*outbound
	names   *nameSockets    // nil: it has no resolver that could be captured
	use     *sourceUse      // of its namespace
	source  *originalSource // nil: its application sees the pod's own address
	watch   *capture.Watch  // of its rules
	reset   time.Time       // when they were set again last, since somebody else had changed them
	since   time.Time
	data    context.Context // of its names; ended by stop
	stop    context.CancelFunc
}

// place is a network namespace that was found.
type place struct {
	ns      *podns.Namespace
	sandbox *podns.Sandbox // the process by which it was found; nil: path
	path    string
}

func (l place) close() {
	if l.sandbox != nil {
		l.sandbox.Close()
		return
	}
	l.ns.Close()
}

// alive reports whether it is still the workload's.
func (l place) alive() bool {
	if l.sandbox != nil {
		return l.sandbox.Alive()
	}
	now, err := podns.Open(l.path)
	if err != nil {
		return false
	}
	defer now.Close()
	return now.ID() == l.ns.ID()
}

// lack is why a workload is not captured.
type lack struct {
	err   error
	since time.Time
	tries int
	again time.Time
}

const (
	// checkEvery is how often captured namespaces are looked at, whether they still are their workloads'.
	checkEvery = 250 * time.Millisecond
	// findShare is the part of one processor's time that looking for pods may take.
	findShare = 10
	// enterAtOnce is how many namespaces are entered at once: most of the time the kernel waits, for all processors to have seen the rules.
	enterAtOnce = 16
)

// tries of what could not be captured, and of pods whose processes are not there yet.
var (
	enterAgain = backoff.Backoff{First: 250 * time.Millisecond, Limit: 10 * time.Second}
	findAgain  = backoff.Backoff{First: 20 * time.Millisecond, Limit: time.Second}
)

// newCaptures returns nil if nothing is to be captured.
func newCaptures(p *Proxy) *captures {
	if !p.cfg.Capture.on() {
		return nil
	}
	return &captures{p: p, cfg: p.cfg.Capture, finder: podns.Finder{Proc: p.cfg.Capture.Proc}, held: map[string]*captured{}, sources: sources{uses: map[podns.ID]*sourceUse{}}, failing: map[string]*lack{}}
}

// follow captures what is on this node, until ctx ends.
func (c *captures) follow(ctx context.Context) {
	sub := c.p.store.Subscribe()
	defer sub.Close()
	next := time.NewTimer(0)
	defer next.Stop()
	misses := 0
	for {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
			changed = true
		case <-next.C:
		}
		began, told := time.Now(), c.p.own.told()
		missing, found := c.revise(ctx)
		if told { // before, there was nobody to look for
			c.first.Store(true)
		}
		if misses++; changed || found || !missing {
			misses = 1
		}
		wait := checkEvery
		if missing {
			wait = min(wait, max(findAgain.Next(misses), findShare*time.Since(began)))
		}
		next.Reset(wait)
	}
}

// settled reports whether what was on this node at the start is captured, as far as that could be.
func (c *captures) settled() bool { return c == nil || c.first.Load() }

// revise brings what is captured in line with the current snapshot. missing: a workload's namespace
// was not found; found: another one's was.
func (c *captures) revise(ctx context.Context) (missing, found bool) {
	snap, now := c.p.store.Current(), time.Now()
	wanted := map[string]*mesh.Workload{}
	for _, w := range c.p.locals() {
		wanted[w.UID] = w
	}
	rules := c.cfg.rules(snap, c.p.captureOwner())
	overlap := c.cfg.overlapping(snap, c.p.cfg.Network)
	moved := false
	defer func() {
		if moved {
			c.p.watchListeners()
		}
	}()
	for _, h := range c.list() {
		switch w := wanted[h.uid]; {
		case w == nil, !h.place.alive(), w.Addresses[0] != h.address:
			c.leave(ctx, h, w == nil)
			moved = true
		case overlap == nil && !c.p.draining.Load() && (!sameRules(h.rules, rules) || c.meddled(h, now)):
			c.replace(h, rules)
		}
	}
	look := map[string]bool{}
	for uid := range wanted {
		if c.get(uid) == nil && c.due(uid, now) {
			look[uid] = true
		}
	}
	c.forget(wanted)
	if len(look) == 0 {
		return false, false
	}
	if overlap != nil {
		for uid := range look {
			c.fail(uid, overlap)
		}
		return false, false
	}
	places := c.find(look)
	c.single(places)
	var enter errgroup.Group
	enter.SetLimit(enterAtOnce)
	for uid, at := range places {
		enter.Go(func() error {
			c.enter(wanted[uid], at, rules)
			return nil
		})
	}
	enter.Wait()
	moved = moved || len(places) > 0
	return len(places) < len(look), len(places) > 0
}

func sameRules(a, b capture.Rules) bool {
	return slices.Equal(a.Ranges, b.Ranges) && slices.Equal(a.Addresses, b.Addresses)
}

// find looks for the namespaces of those workloads; the caller owns what it returns.
func (c *captures) find(look map[string]bool) map[string]place {
	out := map[string]place{}
	for _, n := range c.cfg.Namespaces {
		if !look[n.Workload] {
			continue
		}
		delete(look, n.Workload)
		ns, err := podns.Open(n.Path)
		if err != nil {
			c.fail(n.Workload, err)
			continue
		}
		out[n.Workload] = place{ns: ns, path: n.Path}
	}
	found, err := c.finder.Find(look)
	news := err != nil && err.Error() != c.unfound
	if c.unfound = ""; err != nil {
		c.unfound = err.Error()
	}
	if news {
		c.p.log.Error().Err(err).Msg("cannot look for the network namespaces of pods: give this process the node's proc file system (capture.proc) and the capability SYS_PTRACE")
	}
	for uid, s := range found {
		out[uid] = place{ns: s.Namespace, sandbox: s}
	}
	for uid := range out {
		look[uid] = true
	}
	return out
}

// enter captures w; it owns at.
func (c *captures) enter(w *mesh.Workload, at place, rules capture.Rules) {
	h := &captured{uid: w.UID, address: w.Addresses[0], place: at, rules: rules, since: time.Now()}
	h.data, h.stop = context.WithCancel(c.p.data)
	err := c.open(h, w)
	if err == nil {
		h.watch, err = capture.NewWatch(at.ns)
	}
	c.mu.Lock()
	if err == nil && c.p.draining.Load() {
		err = errors.New("this process stops")
	}
	if err == nil {
		c.held[w.UID] = h
		delete(c.failing, w.UID)
		c.start(h)
	}
	c.mu.Unlock()
	if err != nil {
		h.stop()
		h.names.close()
		h.closeListeners()
		h.watch.Close()
		at.close()
		c.fail(w.UID, err)
		return
	}
	c.p.log.Info().Str("workload", w.UID).Stringer("address", h.address).Msg("captured")
}

// start serves what h has opened; the caller holds mu, and this process does not drain.
func (c *captures) start(h *captured) {
	c.p.running.Go(func() { h.in.run(c.p.data) })
	for _, o := range h.outs {
		c.p.running.Go(func() { o.run(c.p.data) })
	}
	h.names.serve(h.data, c.p.running.Go)
}

func (h *captured) closeListeners() {
	if h.in != nil {
		h.in.listener.Close()
	}
	for _, o := range h.outs {
		o.listener.Close()
	}
}

// captureOwner is whose rules this process sets.
func (p *Proxy) captureOwner() string {
	o := p.cfg.TrustDomain + "/" + p.cfg.Network
	return o[:min(len(o), 100)]
}

// leave ends the capture of a workload that is gone or whose namespace is another one's; whole:
// it may go on without the mesh, so its rules go as well.
func (c *captures) leave(ctx context.Context, h *captured, whole bool) {
	c.mu.Lock()
	delete(c.held, h.uid)
	c.mu.Unlock()
	released := whole && h.place.alive()
	if released {
		if err := capture.Remove(h.place.ns); err != nil {
			c.p.log.Error().Str("workload", h.uid).Err(err).Msg("rules are left in a pod that is captured no more")
		}
	}
	h.names.release()
	h.closeListeners()
	h.watch.Close()
	c.p.pool.Retire(func(k pool.Key) bool { return k.From == h.uid }) // the next ones begin where it is then
	c.leaving.Go(func() {
		dctx, cancel := context.WithTimeout(ctx, c.p.cfg.Timeouts.Drain)
		defer cancel()
		defer h.stop()
		h.in.drain(dctx)
		h.names.drain(dctx)
		if released { // not before: what applications answer would leave the pod
			c.closeSource(h, true)
			h.place.close()
		}
	})
	if !released {
		c.closeSource(h, false)
		h.place.close() // its sockets may be all that keeps the namespace
	}
	c.p.log.Info().Str("workload", h.uid).Msg("captured no more")
}

// resetEvery is how often rules are set again at most: another process of this node may have set its own, the next
// one with another configuration, and neither is to keep the other busy.
const resetEvery = time.Second

// meddled reports whether somebody else has changed the rules of h or taken them away.
func (c *captures) meddled(h *captured, now time.Time) bool {
	if now.Sub(h.reset) < resetEvery {
		return false
	}
	changed, err := h.watch.Changed()
	if err == nil && !changed {
		return false
	}
	hold, err := capture.Hold(h.place.ns, h.rules)
	if err != nil {
		c.fail(h.uid, err)
		return false
	}
	if !hold {
		h.reset = now
		c.p.log.Warn().Str("workload", h.uid).Msg("somebody else has changed the rules in a captured pod: they are set again")
		if h.source != nil {
			c.leaving.Go(h.source.doubt) // those may be gone too
		}
	}
	return !hold
}

// replace has h captured by other rules.
func (c *captures) replace(h *captured, rules capture.Rules) {
	if err := capture.Set(h.place.ns, rules); err != nil {
		c.fail(h.uid, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.rules = rules
	delete(c.failing, h.uid)
}

// drain takes no more connections, and returns when those that are open have ended or ctx has.
func (c *captures) drain(ctx context.Context) {
	var wg sync.WaitGroup
	for _, h := range c.list() {
		h.names.release()
		h.closeListeners()
		wg.Go(func() { h.names.drain(ctx) })
		wg.Go(func() { h.in.drain(ctx) })
		for _, o := range h.outs {
			wg.Go(func() { o.drain(ctx) })
		}
	}
	wg.Wait()
}

// close lets go of all namespaces, when follow has ended. Their rules stay: what they lead to is refused until
// the next node proxy is there.
func (c *captures) close() {
	if c == nil {
		return
	}
	c.leaving.Wait()
	for _, h := range c.list() {
		c.mu.Lock()
		delete(c.held, h.uid)
		c.mu.Unlock()
		h.stop()
		h.names.close()
		h.closeListeners()
		h.watch.Close()
		h.place.close()
	}
}

func (c *captures) get(uid string) *captured {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[uid]
}

func (c *captures) list() (out []*captured) {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.held {
		out = append(out, h)
	}
	return out
}

// due reports whether it is time to try a workload again.
func (c *captures) due(uid string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.failing[uid]
	return l == nil || !now.Before(l.again)
}

// fail notes why a workload is not captured, and says it when that is news.
func (c *captures) fail(uid string, err error) {
	now := time.Now()
	c.mu.Lock()
	l := c.failing[uid]
	news := l == nil || l.err.Error() != err.Error()
	if l == nil {
		l = &lack{since: now}
		c.failing[uid] = l
	}
	l.err = err
	l.tries++
	l.again = now.Add(enterAgain.Next(l.tries))
	c.mu.Unlock()
	if news && !errors.Is(err, os.ErrNotExist) {
		c.p.log.Error().Str("workload", uid).Err(err).Msg("cannot capture a local pod: its connections to the mesh are refused")
	}
}

// forget drops what is known of workloads that are not here.
func (c *captures) forget(wanted map[string]*mesh.Workload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range c.failing {
		if wanted[uid] == nil {
			delete(c.failing, uid)
		}
	}
}

// dialer returns how connections are opened from where a workload is: in its network namespace, or
// where this process is if it is not captured.
func (c *captures) dialer(uid string, keepAlive time.Duration, otherwise dialTCP) dialTCP {
	if c == nil {
		return otherwise
	}
	h := c.get(uid)
	if h == nil {
		return func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) {
			return nil, &notCapturedError{uid}
		}
	}
	return dialFrom(h.place.ns, keepAlive)
}

// notCapturedError is that of a connection from or to a pod whose namespace this process is not in.
type notCapturedError struct{ uid string }

func (e *notCapturedError) Error() string {
	return "this node proxy is not in the network namespace of workload " + e.uid
}

// Unwrap makes it a fault of this host, and not of the pod's.
func (e *notCapturedError) Unwrap() error { return syscall.EACCES }

// captured serves what rules lead here of one workload.
func (p *Proxy) captured(uid string) serve {
	return func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		to, err := capture.Original(app)
		if err != nil {
			p.log.Debug().Str("workload", uid).Stringer("from", app.RemoteAddr()).Err(err).Msg("bad captured connection")
			reset(app)
			return nil
		}
		return p.carry(ctx, app, uid, flowTo(to.Addr().String(), to.Port()), nil, nil, nil)
	}
}
