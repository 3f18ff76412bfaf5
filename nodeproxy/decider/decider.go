// Package decider decides what becomes of the connections that a captured pod opens, on the first packet of each: the mesh
// carries them, they are refused, or they are left to the kernel.
//
// Its invariants, under any order of packets, changes of discovery and restarts:
//   - A decision follows from the judge's state while the decider's lock is held, and is reviewed after each change. So once
//     Review has returned, no destination that the judge places in the mesh is decided Direct.
//   - No destination is decided Direct while the judge awaits an answer about it, unless the answer times out.
//   - Each packet is decided on, unless more than Limit wait. A packet without a decision is dropped. The kernel repeats it.
//
// It owns no socket and does not know what an address means. Safe for concurrent use.
package decider

import (
	"container/heap"
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// Limit bounds the packets of one pod that await answers, and so the open questions.
const Limit = 256

// sameFor is how long a new decision is not repeated. Packets of connections that were opened at the same time arrive after
// it.
const sameFor = 50 * time.Millisecond

// Kernel stores decisions and sends packets. *capture.Undecided is one.
type Kernel interface {
	// Decide puts a decision in force, beside one of another verdict on the same destination.
	Decide(capture.Decision) error
	// Revoke ends a decision. A missing decision is no error.
	Revoke(capture.Decision) error
	// Send sends a packet again, which then meets the decisions in force.
	Send(capture.FirstPacket) error
}

// Judge knows what a destination is.
type Judge interface {
	// Judge returns the current verdict on a destination, and how long it lasts if nothing changes. It does not wait. If ask
	// is true, Ask may change the verdict.
	Judge(to netip.AddrPort) (v capture.Verdict, lasts time.Duration, ask bool)
	// Ask queries other processes about a destination. It returns after their answer or its timeout. It returns false if no
	// query was possible: the destination is then not decided Direct, and its packets are dropped.
	Ask(ctx context.Context, to netip.AddrPort) (asked bool)
	// Decided is called after each decision on a packet, with the decider's lock held. v is Dropped if there was none.
	Decided(v capture.Verdict)
}

// Decider decides for one pod.
type Decider struct {
	kernel Kernel
	judge  Judge
	now    func() time.Time
	most   int // decisions of one verdict

	mu      sync.Mutex
	all     map[key]*decision
	sets    map[set]*soonest // of all
	asked   map[netip.AddrPort]*question
	waiting int // packets of asked
	asking  sync.WaitGroup
}

// key is a destination and a verdict. The kernel has several verdicts on a destination if a revocation failed.
type key struct {
	to      netip.AddrPort
	verdict capture.Verdict
}

// set is one of the kernel's sets, each of which takes as many decisions as Decider.most.
type set struct {
	verdict capture.Verdict
	is4     bool
}

func (k key) set() set { return set{k.verdict, k.to.Addr().Is4()} }

// decision is one that the kernel may have.
type decision struct {
	key
	at    int // in its soonest
	made  time.Time
	until time.Time // when it has expired in the kernel
	sent  packet    // the last packet that was sent again
}

// soonest is a heap of the decisions of a set. The first one expires first.
type soonest []*decision

func (s soonest) Len() int           { return len(s) }
func (s soonest) Less(i, j int) bool { return s[i].until.Before(s[j].until) }
func (s soonest) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].at, s[j].at = i, j
}

func (s *soonest) Push(x any) {
	d := x.(*decision)
	d.at = len(*s)
	*s = append(*s, d)
}

func (s *soonest) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return x
}

type packet struct {
	from     netip.AddrPort
	sequence uint32
	at       time.Time
}

// grace is how much longer a decision is kept here than in the kernel, whose timer starts later.
const grace = 2 * time.Second

type question struct{ packets []capture.FirstPacket }

// New returns a Decider whose kernel takes capture.MaxDecisions of a verdict.
func New(k Kernel, j Judge) *Decider {
	return &Decider{kernel: k, judge: j, now: time.Now, most: capture.MaxDecisions, all: map[key]*decision{}, sets: map[set]*soonest{}, asked: map[netip.AddrPort]*question{}}
}

// Wait returns when no question is open. No packet may be offered after it was called.
func (d *Decider) Wait() { d.asking.Wait() }

// Packet decides on a packet. Questions that it asks end with ctx.
func (d *Decider) Packet(ctx context.Context, p capture.FirstPacket) {
	d.mu.Lock()
	q := d.asked[p.To]
	if q == nil {
		v, lasts, ask := d.judge.Judge(p.To)
		if !ask {
			d.settle(p.To, v, lasts, p)
			d.mu.Unlock()
			return
		}
	}
	defer d.mu.Unlock()
	if d.waiting >= Limit {
		d.judge.Decided(capture.Dropped)
		return
	}
	d.waiting++
	if q != nil {
		q.packets = append(q.packets, p)
		return
	}
	d.asked[p.To] = &question{packets: []capture.FirstPacket{p}}
	d.asking.Go(func() {
		asked := d.judge.Ask(ctx, p.To)
		d.mu.Lock()
		defer d.mu.Unlock()
		q := d.asked[p.To]
		delete(d.asked, p.To)
		d.waiting -= len(q.packets)
		v, lasts, _ := d.judge.Judge(p.To)
		if ctx.Err() != nil || !asked && v == capture.Direct { // the next node proxy decides, or the next packet asks
			for range q.packets {
				d.judge.Decided(capture.Dropped)
			}
			return
		}
		d.settle(p.To, v, lasts, q.packets...)
	})
}

// settle puts a decision in force and sends packets again. The caller holds mu.
func (d *Decider) settle(to netip.AddrPort, v capture.Verdict, lasts time.Duration, packets ...capture.FirstPacket) {
	now := d.now()
	for _, other := range []capture.Verdict{capture.Direct, capture.Mesh, capture.Refused} {
		if k := (key{to, other}); other != v && d.all[k] != nil {
			d.revoke(k)
		}
	}
	k, failed := key{to, v}, false
	x := d.all[k]
	if x == nil || now.Sub(x.made) >= sameFor {
		if x == nil {
			x = &decision{key: k}
		} else {
			d.remove(x)
		}
		d.makeRoom(k.set(), now)
		failed = d.kernel.Decide(capture.Decision{To: to, Verdict: v, For: lasts}) != nil
		x.made, x.until = now, d.now().Add(lasts+grace)
		d.add(x) // also if the kernel reports an error: it may have it
	}
	for _, p := range packets {
		again := packet{p.From, p.Sequence, now}
		switch last := x.sent; {
		case failed:
			d.judge.Decided(capture.Dropped)
		case last.from == again.from && last.sequence == again.sequence && now.Sub(last.at) < sameFor:
			// The packet did not meet the decision, because another program changes the rules. The kernel repeats it.
		default:
			if x.sent = again; d.kernel.Send(p) == nil {
				d.judge.Decided(v)
			}
		}
	}
}

// makeRoom makes room for one more decision in a set: it removes expired ones, then it revokes those that expire first. It
// looks at the decisions that it removes alone. The caller holds mu.
func (d *Decider) makeRoom(in set, now time.Time) {
	for of := d.sets[in]; of != nil && of.Len() >= d.most; {
		if x := (*of)[0]; !now.Before(x.until) {
			d.remove(x)
		} else if !d.revoke(x.key) {
			return // the kernel has failed: the next packet tries again
		}
	}
}

// add adds x to all and its set. The caller holds mu.
func (d *Decider) add(x *decision) {
	of := d.sets[x.key.set()]
	if of == nil {
		of = &soonest{}
		d.sets[x.key.set()] = of
	}
	d.all[x.key] = x
	heap.Push(of, x)
}

// remove removes what add has added. The caller holds mu.
func (d *Decider) remove(x *decision) {
	delete(d.all, x.key)
	heap.Remove(d.sets[x.key.set()], x.at)
}

// revoke ends a decision, and reports whether that succeeded. The caller holds mu.
func (d *Decider) revoke(k key) bool {
	if d.kernel.Revoke(capture.Decision{To: k.to, Verdict: k.verdict}) != nil {
		return false
	}
	d.remove(d.all[k])
	return true
}

// Review revokes the decisions that the judge no longer makes, and removes expired ones. concerns reports whether a decision
// Direct on an address may change: there may be many of these. All others are reviewed. It returns false if a revocation
// failed: call it again soon.
func (d *Decider) Review(concerns func(netip.Addr) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, done := d.now(), true
	for k, x := range d.all {
		if !now.Before(x.until) {
			d.remove(x)
			continue
		}
		if k.verdict == capture.Direct && !concerns(k.to.Addr()) {
			continue
		}
		if v, _, _ := d.judge.Judge(k.to); v != k.verdict && !d.revoke(k) {
			done = false
		}
	}
	return done
}
