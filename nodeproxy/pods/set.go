package pods

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Set is the local workloads that are captured in their network namespaces, and those
// that are to be. A nil one is that of a process which captures nobody. Its goroutine
// is Run's, which waits for no pod: what is done in one is one of works, and has its Pod for itself meanwhile. What it holds ends with its workload, its sandbox or the process. Safe for concurrent use.
type Set struct {
	p       Parent
	cfg     Options
	finder  podns.Finder
	leaving sync.WaitGroup // drains of what is captured no more, and of all at the end
	sources sources
	node    nodeSockets
	finding time.Duration // what the last look for namespaces took; Run's alone
	began   uint64        // when this process did, as capture.Now has it
	noIPv6  sync.Once     // said
	first   atomic.Bool   // all workloads that were there have been looked for once

	wake      chan struct{} // has Run look again
	ended     chan struct{} // tells Run that something that was done in a pod has ended
	works     works
	came      atomic.Bool // pods have been entered or left, of which nobody has been told yet
	opening   []*work     // what was done when pods were known for the first time; Run's alone
	leftovers leftovers   // Run's alone, but for looks

	verdicts verdicts // counts what the CNI plugin is answered

	telling sync.Mutex // held while the parent is told of an address, or that there is none, so that the last word is that of who is announced; before mu

	mu        sync.Mutex
	held      map[string]*Pod            // by workload UID
	gone      map[chan struct{}]struct{} // of those that were left and drain: each is closed when it has
	failing   map[string]*lack
	unfound   string                   // why namespaces could not be looked for last, and what to do
	announced map[string]*announcement // likewise; those that wait for a verdict, and of captured ones until a process was found
	reading   map[string]struct{}      // workloads of which a file is being read
	yielded   map[string]*yielding     // by workload UID, those that are left to another node proxy
}

// Pod is one workload in its namespace. Its methods are safe for concurrent use.
type Pod struct {
	uid      string
	address  netip.Addr // the first of the workload
	place    place
	rules    capture.Rules
	incoming Listeners       // those that are open so far
	server   Server          // of these; nil until they all are
	judged   judged          // by what its inbound connections were judged last
	names    *nameSockets    // nil: it has no resolver that could be captured
	use      *sourceUse      // of its namespace
	source   *originalSource // nil: its application sees the pod's own address
	ports    *capture.Ports  // local ports of connections to its application
	watch    *capture.Watch  // of its rules
	reset    time.Time       // when they were set again last, since somebody else had changed them
	heard    time.Time       // when its listeners were looked at last
	unsure   bool            // whether they hold: they could not be looked at, or set again
	left     bool            // those that are there are another process's, which listens there too
	setBy    capture.Setter  // whose they were when that was last seen
	beside   bool            // other processes of ours may listen where it does
	sharers  []uint64        // cookies of those listeners, and its own, when that was last seen
	elders   []uint64        // likewise, of those that were there when it came
	routed   time.Time       // when it was looked for routes last
	unrouted netip.Addr      // a virtual address that it has no route for; with routed under mu of Set
	unexempt error           // why policies hold for the node's own processes too; with unjudged under mu of Set
	unjudged error           // why connections that policies deny may be open
	drained  sync.Once       // what is open of it
	emptied  bool            // it has left, and its rules have gone: those that come are another process's
	since    time.Time
	data     context.Context // of its names, and of what is carried in plain text; ended by stop
	stop     context.CancelFunc
}

const (
	// checkOften and checkEvery are how often captured namespaces are looked at, whether they still are their workloads':
	// the less where there are many. The end of another pid namespace's process is no event.
	checkOften, checkEvery = 50 * time.Millisecond, 250 * time.Millisecond
	// checkShare is the part of one processor's time that it may take.
	checkShare = 50
	// findShare is the part of one processor's time that looking for pods may take.
	findShare = 10
)

// findAgain are the tries of pods whose processes are not there yet.
var findAgain = backoff.Backoff{First: 20 * time.Millisecond, Limit: time.Second}

// New returns nil if nothing is to be captured. The caller then calls Run, in the end Drain, and Close when Run has
// returned and what it began with Parent.Go has ended.
func New(o Options, p Parent) *Set {
	if !o.On() {
		return nil
	}
	began, err := capture.Now()
	if err != nil {
		began = 0 // a kernel without that clock: all are as young
	}
	c := &Set{p: p, began: began, cfg: o, finder: podns.Finder{Proc: o.Proc}, held: map[string]*Pod{}, gone: map[chan struct{}]struct{}{}, sources: sources{uses: map[podns.ID]*sourceUse{}}, node: nodeSockets{proc: o.Proc}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	c.works.done = func() {
		select {
		case c.ended <- struct{}{}:
		default:
		}
	}
	return c
}

// Run captures what is on this node, until ctx ends.
func (c *Set) Run(ctx context.Context) {
	if c.cfg.All() {
		c.nodeUnknown(c.node.lack()) // now, and not when a probe has been refused
	}
	sub := c.p.Store.Subscribe()
	defer sub.Close()
	next := time.NewTimer(0)
	defer next.Stop()
	misses, look := 0, time.Duration(0) // look: what a round takes in which nobody is entered
	for {
		changed := false
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
			changed = true
		case <-c.wake:
			changed = true
		case <-c.ended:
			if c.came.Swap(false) {
				c.p.Changed()
			}
			c.opened()
			continue
		case <-next.C:
		}
		began, told := time.Now(), c.p.Told()
		missing, found := c.revise(ctx)
		c.adopt()
		if told && c.opening == nil { // before, there was nobody to look for
			c.opening = append([]*work{}, c.works.list()...)
		}
		c.opened()
		if misses++; changed || found || !missing {
			misses = 1
		}
		if !changed && !found {
			look = time.Since(began)
		} else {
			look /= 2 // a processor that was busy then need not be now
		}
		wait := min(checkEvery, max(checkOften, checkShare*look))
		if missing {
			wait = min(wait, max(findAgain.Next(misses), findShare*c.finding))
		}
		next.Reset(wait)
	}
}

// opened notes when the pods that were there at first have been entered; for one that takes long nobody waits.
func (c *Set) opened() {
	now := time.Now()
	unfinished := func(x *work) bool { return !c.works.over(x, now) }
	if c.opening != nil && !slices.ContainsFunc(c.opening, unfinished) {
		c.first.Store(true)
	}
}

// Settled reports whether what was on this node at the start is captured, as far as that could be.
func (c *Set) Settled() bool { return c == nil || c.first.Load() }

// revise brings what is captured in line with the current snapshot. missing: a workload's namespace
// was not found; found: another one's was.
func (c *Set) revise(ctx context.Context) (missing, found bool) {
	snap, now := c.p.Store.Current(), time.Now()
	wanted := map[string]*mesh.Workload{}
	for _, w := range c.p.Locals() {
		wanted[w.UID] = w
	}
	rules := c.cfg.rules(snap, c.cfg.owner())
	c.keep(ctx, wanted, rules, destinations(snap), now)
	look := map[string]bool{}
	for uid := range wanted {
		if !c.p.Draining() && !c.works.busy(uid) && c.Get(uid) == nil && c.due(uid, now) { // or the next one's rules would be replaced
			look[uid] = true
		}
	}
	c.forget(wanted)
	c.judge(snap)
	c.clean(snap, now)
	if len(look) == 0 {
		c.lookedFor(nil) // whoever was not found has left
		return false, false
	}
	if overlap := c.cfg.Overlapping(snap, c.cfg.Network); overlap != nil { // captured pods stay so: their ranges are the same
		for uid := range look {
			c.fail(uid, overlap)
			c.failed(c.announcementOf(uid), overlap)
		}
		return false, false
	}
	began := time.Now()
	places := c.find(look)
	c.finding = time.Since(began)
	c.single(places)
	c.enterAll(wanted, places, rules)
	return len(places) < len(look), len(places) > 0
}

// Get returns the workload if it is captured, else nil.
func (c *Set) Get(uid string) *Pod {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held[uid]
}

// List returns those that are captured, in no order.
func (c *Set) List() (out []*Pod) {
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
