package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// announcement is the network namespace of a pod's sandbox as the node's CNI plugin has announced it, before anything of
// the pod runs. It is kept until the pod's processes are found, which show better whether the sandbox lives, or the
// plugin says that it has gone.
type announcement struct {
	uid, container string
	ns             *podns.Namespace // its own; who enters has another one of the same
	resolver       *names.Resolver  // nil: the runtime has not said how the pod resolves names

	decided chan struct{}
	reply   cnisocket.Reply // once decided is closed

	gone    atomic.Bool    // the sandbox is no more, or is to be found by its processes
	sandbox *podns.Sandbox // a process in it; nil: none was found yet. This and what follows is Run's alone, or one of works
	tries   int
	again   time.Time
	differs int // how often the pod's resolv.conf was another one than was announced
}

// adoptAgain are the looks for processes of pods that were announced.
var adoptAgain = backoff.Backoff{First: 250 * time.Millisecond, Limit: 10 * time.Second}

// plugins answers the CNI plugin of the node; it implements cnisocket.Node.
type plugins struct{ c *Set }

// Add implements cnisocket.Node.
func (p plugins) Add(ctx context.Context, r cnisocket.Request, namespace *os.File) cnisocket.Reply {
	c := p.c
	ns, err := podns.FromFile(namespace)
	if err != nil {
		return cnisocket.Reply{Verdict: cnisocket.Refused, Reason: err.Error()}
	}
	a := &announcement{uid: r.UID, container: r.Container, ns: ns, resolver: resolverOf(r.DNS), decided: make(chan struct{})}
	c.telling.Lock()
	c.p.Announce(r.UID, primaryFirst(r.Addresses)) // before Run can see a: it would enter with the address of the sandbox before
	kept := c.announce(a)
	c.telling.Unlock()
	if !kept {
		return cnisocket.Reply{Verdict: cnisocket.Captured}
	}
	c.wakeUp()
	began, late := time.Now(), cnisocket.Reply{}
	select {
	case <-a.decided:
	case <-ctx.Done():
		late = c.undecidedReply(r, time.Since(began))
		c.decide(a, late)
		<-a.decided
	}
	ended := late.Verdict != "" && a.reply == late && errors.Is(ctx.Err(), context.Canceled)
	if ended || a.reply.Verdict == cnisocket.Failed && c.p.Draining() {
		return cnisocket.Reply{Verdict: cnisocket.Stopping, Reason: "this node proxy stops"}
	}
	return a.reply
}

// undecidedReply is that to who has waited in vain for a pod to be captured: either nobody has told of it, or it is this
// process that has not come to it.
func (c *Set) undecidedReply(r cnisocket.Request, waited time.Duration) cnisocket.Reply {
	waited = waited.Round(time.Millisecond)
	if w := c.p.Store.Current().Workload(r.UID); w == nil || w.Node != c.cfg.Node || w.Network != c.cfg.Network {
		who := "no gateway has"
		if !c.p.Gateways() {
			who = "the discovery file has not"
		}
		return cnisocket.Reply{Verdict: cnisocket.Unknown, Reason: fmt.Sprintf("%s told this node proxy within %v of the pod %s/%s (%s) on node %s", who, waited, r.Namespace, r.Name, r.UID, c.cfg.Node)}
	}
	c.mu.Lock()
	l := c.failing[r.UID]
	c.mu.Unlock()
	if l != nil {
		return cnisocket.Reply{Verdict: cnisocket.Failed, Reason: l.err.Error()}
	}
	why := c.works.doing(r.UID, time.Now())
	if why == "" {
		why = "it has not come to the pod"
	}
	return cnisocket.Reply{Verdict: cnisocket.Failed, Reason: fmt.Sprintf("this node proxy was busy for %v (%s): its isthmus status says if a pod of the node is slow; else give it more CPU", waited, why)}
}

// Check implements cnisocket.Node.
func (p plugins) Check(r cnisocket.Request) cnisocket.Reply {
	snap := p.c.p.Store.Current()
	w := snap.Workload(r.UID)
	switch {
	case p.c.Get(r.UID) != nil:
		return cnisocket.Reply{Verdict: cnisocket.Captured}
	case outside(snap, r.UID):
		return cnisocket.Reply{Verdict: cnisocket.Outside}
	case w == nil:
		return cnisocket.Reply{Verdict: cnisocket.Unknown}
	case w.Plain:
		return cnisocket.Reply{Verdict: cnisocket.Outside}
	}
	reply := cnisocket.Reply{Verdict: cnisocket.Failed, Reason: "it is not captured yet"}
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	if l := p.c.failing[r.UID]; l != nil {
		reply.Reason = l.err.Error()
	}
	return reply
}

// Delete implements cnisocket.Node.
func (p plugins) Delete(r cnisocket.Request) {
	p.c.end(func(a *announcement) bool { return a.uid == r.UID && a.container == r.Container })
}

// Retain implements cnisocket.Node.
func (p plugins) Retain(containers []string) {
	p.c.end(func(a *announcement) bool { return !slices.Contains(containers, a.container) })
}

// resolverOf reads what the pod's resolv.conf will say.
func resolverOf(d *cnisocket.DNS) *names.Resolver {
	if d == nil || len(d.Servers) == 0 {
		return nil
	}
	r := names.ParseResolvConf("nameserver " + strings.Join(d.Servers, "\nnameserver ") + "\nsearch " + strings.Join(d.Search, " ") + "\noptions " + strings.Join(d.Options, " ") + "\n")
	return &r
}

// primaryFirst has IPv4 addresses first, as runtimes have them unless told otherwise.
func primaryFirst(addresses []netip.Addr) []netip.Addr {
	out := slices.Clone(addresses)
	slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return out
}

// announce keeps a, which is another one's from then on. False, and a is closed, if its namespace is captured already.
func (c *Set) announce(a *announcement) bool {
	c.mu.Lock()
	h, old := c.held[a.uid], c.announced[a.uid]
	if h != nil && h.place.ns.ID() == a.ns.ID() && (h.place.told == nil || !h.place.told.gone.Load()) {
		if h.place.told != nil {
			h.place.told.container = a.container
		}
		c.mu.Unlock()
		a.ns.Close()
		return false
	}
	c.announced[a.uid] = a
	delete(c.failing, a.uid) // what failed was another sandbox's
	c.mu.Unlock()
	if old != nil {
		old.ns.Close()
		old.settle(cnisocket.Reply{Verdict: cnisocket.Refused, Reason: "another sandbox of the pod was announced"})
	}
	return true
}

// settle answers who waits for a, which nobody else has any more.
func (a *announcement) settle(r cnisocket.Reply) {
	select {
	case <-a.decided:
	default:
		a.reply = r
		close(a.decided)
	}
}

// decide answers who waits for a, unless that was done. Only what is captured is kept then.
func (c *Set) decide(a *announcement, r cnisocket.Reply) {
	c.telling.Lock()
	defer c.telling.Unlock()
	if !c.undecide(a, r) {
		return
	}
	a.ns.Close()
	c.p.Forget(a.uid)
	a.settle(r)
}

// undecide gives up a, if it is kept still, without a verdict, and not to be kept with this one.
func (c *Set) undecide(a *announcement, r cnisocket.Reply) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.announced[a.uid] != a {
		return false
	}
	select {
	case <-a.decided: // it is kept
		return false
	default:
	}
	if r.Verdict == cnisocket.Captured {
		a.settle(r)
		return false
	}
	delete(c.announced, a.uid)
	return true
}

// failed answers who waits for a, which may be nil.
func (c *Set) failed(a *announcement, err error) {
	if a != nil {
		c.decide(a, cnisocket.Reply{Verdict: cnisocket.Failed, Reason: err.Error()})
	}
}

// announcementOf returns what was announced of a pod, or nil.
func (c *Set) announcementOf(uid string) *announcement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.announced[uid]
}

// end lets go of what ends says, also of what is captured.
func (c *Set) end(ends func(*announcement) bool) {
	c.mu.Lock()
	var gone []*announcement
	for _, a := range c.announced {
		if ends(a) {
			gone = append(gone, a)
		}
	}
	for _, h := range c.held {
		if a := h.place.told; a != nil && c.announced[h.uid] != a && ends(a) {
			gone = append(gone, a)
		}
	}
	for _, a := range gone {
		a.gone.Store(true)
	}
	c.mu.Unlock()
	c.telling.Lock()
	for _, a := range gone {
		c.discard(a)
		if c.announcementOf(a.uid) == nil { // else another sandbox has been announced
			c.p.Forget(a.uid)
		}
	}
	c.telling.Unlock()
	c.wakeUp()
}

// discard forgets a, if it is kept still.
func (c *Set) discard(a *announcement) {
	c.mu.Lock()
	kept := c.announced[a.uid] == a
	if kept {
		delete(c.announced, a.uid)
	}
	c.mu.Unlock()
	if kept {
		a.ns.Close()
		a.settle(cnisocket.Reply{Verdict: cnisocket.Refused, Reason: "its sandbox has gone"})
	}
}

// wakeUp has Run look again.
func (c *Set) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// judge answers who waits for pods that are not in the mesh.
func (c *Set) judge(snap *mesh.Snapshot) {
	for _, a := range c.undecided() {
		w := snap.Workload(a.uid)
		if outside(snap, a.uid) || w != nil && (w.Plain || w.Node != c.cfg.Node || w.Network != c.cfg.Network) {
			c.decide(a, cnisocket.Reply{Verdict: cnisocket.Outside})
			continue
		}
		// It was found by a process while it was announced: it is captured, and that process shows how long its sandbox lives.
		if h := c.Get(a.uid); h != nil && h.place.told == nil && h.place.ns.ID() == a.ns.ID() {
			c.decide(a, cnisocket.Reply{Verdict: cnisocket.Captured})
			c.discard(a)
		}
	}
}

// outside reports whether discovery says of a pod that it is not in the mesh.
func outside(snap *mesh.Snapshot, uid string) bool {
	w := snap.Scheduled(uid)
	return w != nil && w.Outside
}

func (c *Set) undecided() (out []*announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.announced {
		select {
		case <-a.decided:
		default:
			out = append(out, a)
		}
	}
	return out
}

// moved reports whether another namespace was announced for the pod of h than the one that it is captured in.
func (c *Set) moved(h *Pod) bool {
	a := c.announcementOf(h.uid)
	return a != nil && a.ns.ID() != h.place.ns.ID()
}

// announcedPlaces returns the namespaces of those of look that were announced, which nobody has to look for then; the caller owns them.
func (c *Set) announcedPlaces(look map[string]bool) map[string]place {
	out := map[string]place{}
	for uid := range look {
		a := c.announcementOf(uid)
		if a == nil {
			continue
		}
		if ns, err := a.ns.Clone(); err == nil { // else it was given up just now
			out[uid] = place{ns: ns, told: a}
			delete(look, uid)
		}
	}
	return out
}

// adopt looks for processes in namespaces that were announced: from then on they show whether a sandbox lives. Where
// they resolve names by another resolv.conf than was announced they are answered by that one.
func (c *Set) adopt() {
	look, of := map[string]bool{}, map[string]*Pod{}
	began := time.Now()
	for _, h := range c.List() {
		if c.works.busy(h.uid) {
			continue
		}
		if a := h.place.told; a != nil && a.sandbox == nil && !a.gone.Load() && began.After(a.again) {
			a.tries++
			look[h.uid], of[h.uid] = true, h
		}
	}
	found, _ := c.finder.Find(look) // find says what is wrong
	for uid, h := range of {
		again := began.Add(max(adoptAgain.Next(h.place.told.tries), findShare*time.Since(began)))
		if s := found[uid]; s == nil {
			h.place.told.again = again
		} else {
			c.works.begin(uid, "finding out how it resolves names", h.place.ns.ID(), func() {
				if !c.adopted(h, s) {
					s.Close()
					h.place.told.again = again
				}
			})
		}
	}
}

// adopted reports whether s shows from now on whether the sandbox of h lives, which owns it then.
func (c *Set) adopted(h *Pod, s *podns.Sandbox) bool {
	a := h.place.told
	if s.Namespace.ID() != h.place.ns.ID() { // of a process that is only about to enter the pod
		return false
	}
	text, err := c.readFile(h.uid, resolvConf, s.ReadFile)
	if r := names.ParseResolvConf(string(text)); err == nil && resolvable(r) && (a.resolver == nil || !reflect.DeepEqual(r, *a.resolver)) {
		if a.differs++; a.differs < 2 { // a process that only begins to be the pod's has the root of its node
			return false
		}
		announced := a.resolver
		a.resolver = &r
		if err := c.reopenNames(h); err != nil {
			a.resolver = announced
			c.p.Log.Warn().Str("workload", h.uid).Err(err).Msg("a pod resolves names by another resolv.conf than was announced, and they are answered by the one that was")
			return false
		}
		c.p.Log.Info().Str("workload", h.uid).Msg("a pod resolves names by another resolv.conf than was announced: they are answered by that")
	}
	a.sandbox = s
	c.discard(a)
	return true
}

// AnswerPlugins answers the CNI plugin of the node from when its pods are captured until ctx ends.
func (c *Set) AnswerPlugins(ctx context.Context, s *cnisocket.Server) {
	for !c.Settled() {
		if !pause(ctx, 10*time.Millisecond) {
			s.Close()
			return
		}
	}
	if err := s.Run(ctx); err != nil {
		c.p.Log.Error().Err(err).Msg("the CNI plugin of this node is not answered: pods may start before they are captured")
	}
}
