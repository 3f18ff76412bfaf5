// Package decider decides what becomes of the connections that a captured pod opens, on the first packet of each: the mesh
// carries them, they are refused, or they are left to the kernel.
//
// Its invariants, under any order of packets, changes of discovery and restarts:
//   - A decision is made by what the judge knows while the decider's lock is held, and reviewed after each change. So a
//     destination that the judge says is the mesh's is not decided Direct once Review has returned.
//   - No destination is decided Direct without an answer that the judge wants, unless the others do not answer in time.
//   - Each packet is decided on, unless more wait than Limit. One that is not comes again, as the kernel repeats it.
//
// It owns no socket and does not know what an address means. Safe for concurrent use.
package decider

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// Limit is how many packets of one pod wait for answers to questions at once, and how many such questions there are.
const Limit = 256

// sameFor is for how long a decision that was just made is not made again: packets of connections that were opened at the
// same time arrive after it.
const sameFor = 50 * time.Millisecond

// Kernel stores decisions and sends packets. *capture.Undecided is one.
type Kernel interface {
	// Decide puts a decision in force, beside one of another verdict on the same destination.
	Decide(capture.Decision) error
	// Revoke ends a decision. It is no error that there is none.
	Revoke(capture.Decision) error
	// Send sends a packet again, which then meets the decisions in force.
	Send(capture.FirstPacket) error
}

// Judge knows what a destination is.
type Judge interface {
	// Judge returns the verdict on a destination by what is known now, and how long it is good for if nothing changes. It
	// does not wait. If ask is true others may know more.
	Judge(to netip.AddrPort) (v capture.Verdict, lasts time.Duration, ask bool)
	// Ask asks others about a destination and returns when they have answered, or do not in time. It returns false if it
	// could not ask: the destination is then not decided Direct, and its packets are dropped.
	Ask(ctx context.Context, to netip.AddrPort) (asked bool)
	// Decided is called after each decision on a packet, with the lock of the decider held: 0 if the packet was dropped.
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
	asked   map[netip.AddrPort]*question
	waiting int // packets of asked
	asking  sync.WaitGroup
}

// key is a destination with one of the verdicts on it. The kernel has more than one of them where it did not revoke one.
type key struct {
	to      netip.AddrPort
	verdict capture.Verdict
}

// decision is one that the kernel may have.
type decision struct {
	made  time.Time
	until time.Time // the kernel has it no longer
	sent  packet    // the last one that was sent again
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
	return &Decider{kernel: k, judge: j, now: time.Now, most: capture.MaxDecisions, all: map[key]*decision{}, asked: map[netip.AddrPort]*question{}}
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
		d.judge.Decided(0)
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
				d.judge.Decided(0)
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
		d.makeRoom(k, now)
		if x == nil {
			x = &decision{}
			d.all[k] = x // also if the kernel reports an error: it may have it
		}
		failed = d.kernel.Decide(capture.Decision{To: to, Verdict: v, For: lasts}) != nil
		x.made, x.until = now, d.now().Add(lasts+grace)
	}
	for _, p := range packets {
		again := packet{p.From, p.Sequence, now}
		switch last := x.sent; {
		case failed:
			d.judge.Decided(0)
		case last.from == again.from && last.sequence == again.sequence && now.Sub(last.at) < sameFor:
			// It has not met the decision, because another program changes the rules. Its kernel sends it again.
		default:
			if x.sent = again; d.kernel.Send(p) == nil {
				d.judge.Decided(v)
			}
		}
	}
}

// makeRoom ends decisions that are over, and those that end first if there are too many of a verdict: the kernel rejects more.
// The caller holds mu.
func (d *Decider) makeRoom(wanted key, now time.Time) {
	if len(d.all) < d.most {
		return
	}
	var rivals []key
	for k, x := range d.all {
		switch {
		case k == wanted:
		case !now.Before(x.until):
			delete(d.all, k)
		case k.verdict == wanted.verdict && k.to.Addr().Is4() == wanted.to.Addr().Is4():
			rivals = append(rivals, k)
		}
	}
	if len(rivals) < d.most {
		return
	}
	slices.SortFunc(rivals, func(a, b key) int { return d.all[a].until.Compare(d.all[b].until) })
	for _, k := range rivals[:len(rivals)-d.most+1] {
		d.revoke(k)
	}
}

// revoke ends a decision, and reports whether it could. The caller holds mu.
func (d *Decider) revoke(k key) bool {
	if d.kernel.Revoke(capture.Decision{To: k.to, Verdict: k.verdict}) != nil {
		return false
	}
	delete(d.all, k)
	return true
}

// Review ends the decisions that the judge would make otherwise now, and those that are over. concerns reports whether a
// decision Direct on an address may have to change; there may be many. The others are all reviewed. It returns false if the
// kernel has kept a decision that was to end: call it again soon.
func (d *Decider) Review(concerns func(netip.Addr) bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, done := d.now(), true
	for k, x := range d.all {
		if !now.Before(x.until) {
			delete(d.all, k)
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
