// Package memory bounds the bytes that one process buffers for the connections it
// carries. Limits per identity and per session do not bound their sum; the Budget
// does.
//
// Every buffer that can outlive the call that fills it is charged to a Use: the
// receive queue of a stream, the send queue and the read buffer of a session, the
// piece that a plain relay could not write yet, early data. A Use belongs to an
// owner, the identity that the bytes are buffered for.
//
// The budget acts in this order:
//
//  1. It shrinks receive windows. A stream always has its first window. What it has
//     beyond that comes out of a pool of a third of the budget, and each stream gets
//     an eighth of what the pool has left. So the windows of all streams shrink
//     together, and no stream gets less than its first window. A stream that is read
//     as fast as it receives takes nothing of the pool.
//  2. From 7/8 on it delays new streams and early data of owners that are above their
//     fair share, the budget divided by the number of owners. After a second, or at once
//     for a caller that cannot wait, it makes room for a new stream: it resets the
//     largest streams of owners that hold no less than that one, until 13/16 are used.
//  3. From 15/16 on it resets the largest stream of the largest owner, again and
//     again, until 13/16 are used.
//
// Invariants, which the tests check against a model:
//   - Reserve never takes the sum of all uses above the budget.
//   - A closed Use holds nothing: no reservation outlives its stream.
//   - No owner loses a stream for another owner's bytes while any owner holds more that
//     can be reset. Of an owner the largest use goes first.
//   - A new stream is refused only if nothing of its owner, or of a larger one, can be reset.
//   - A window is never below the first window, so a stream that is read goes on; it
//     grows again as soon as the pool has room.
package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Shares of the budget.
const (
	growthPart   = 3    // windows beyond the first one: 1/3
	windowPart   = 8    // of what is left of that, for one window: 1/8
	firstStreams = 2048 // first windows that fill the budget

	minFirstWindow = 64 << 10 // bytes; HTTP/2's default
)

// Budget is the memory for buffers of one process. A nil Budget has no bound. Make one
// with NewBudget. Safe for concurrent use.
type Budget struct {
	size   int64
	used   atomic.Int64
	growth atomic.Int64 // window bytes beyond first windows, of all uses
	kernel atomic.Int64 // bytes of socket buffers, see Run

	heap, cgroup int64        // limits of the runtime and of the cgroup; zero without one
	sockets      func() int64 // reads kernel; nil without a cgroup

	relief sync.Mutex // held while uses are reset; taken before mu
	soon   atomic.Bool

	mu     sync.Mutex
	owners map[string]*owner

	resets  *prometheus.CounterVec
	streams *prometheus.CounterVec
}

// owner is an identity that has uses.
type owner struct {
	name string
	used atomic.Int64
	uses map[*Use]struct{} // guarded by Budget.mu
}

// Kind is what a Use buffers for. The set is closed.
type Kind uint8

const (
	Stream  Kind = iota // bytes that a stream has received
	Session             // what a session reads and sends with
	Relay               // a plain relay
	Other               // early data, DNS queries
	kinds
)

var kindNames = [kinds]string{"stream", "session", "relay", "other"}

// Use is what one stream, session or relay holds of the budget. A nil Use is one of a
// nil Budget: everything is granted. Safe for concurrent use.
type Use struct {
	b     *Budget
	o     *owner
	kind  Kind
	reset func() bool

	mu     sync.Mutex
	n      int64 // bytes
	growth int64 // bytes of window beyond the first one
	closed bool
}

// NewBudget returns a budget of size bytes. Zero or less is no bound: nil.
func NewBudget(size int64) *Budget {
	if size <= 0 {
		return nil
	}
	b := &Budget{size: size, owners: map[string]*owner{}}
	b.resets, b.streams = newCounters()
	return b
}

// Size is the budget in bytes, zero if it has no bound.
func (b *Budget) Size() int64 {
	if b == nil {
		return 0
	}
	return b.size
}

// Used is the sum of all uses, in bytes.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Uses returns how many uses are open.
func (b *Budget) Uses() (n int) {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, o := range b.owners {
		n += len(o.uses)
	}
	return n
}

// Open returns a use of the named owner, to be closed by the caller. reset ends what
// the use is for and makes its holder close it. It is called without any lock, must not
// wait, and returns false if the use must not be reset now. A nil reset is one that
// always returns false.
func (b *Budget) Open(name string, kind Kind, reset func() bool) *Use {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owners[name]
	if o == nil {
		o = &owner{name: name, uses: map[*Use]struct{}{}}
		b.owners[name] = o
	}
	u := &Use{b: b, o: o, kind: kind, reset: reset}
	o.uses[u] = struct{}{}
	return u
}

// Close gives back everything that u holds. Afterwards Reserve fails and Release does
// nothing. It may be called more than once.
func (u *Use) Close() {
	if u == nil {
		return
	}
	u.mu.Lock()
	if u.closed {
		u.mu.Unlock()
		return
	}
	u.closed = true
	u.addLocked(-u.n)
	u.setGrowthLocked(0)
	u.mu.Unlock()
	b := u.b
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(u.o.uses, u)
	if len(u.o.uses) == 0 {
		delete(b.owners, u.o.name)
	}
}

func (u *Use) addLocked(n int64) {
	u.n += n
	u.o.used.Add(n)
	u.b.used.Add(n)
}

// Reserve takes n bytes, and resets the largest uses if there is too little left. The
// caller holds no lock. It returns false if u is closed, which a reset may have done
// just now, or if there is nothing that could be reset.
func (u *Use) Reserve(n int) bool {
	if u == nil {
		return true
	}
	b := u.b
	if b.used.Load()+int64(n) > b.size/16*15 {
		b.relieve(int64(n))
	}
	return u.tryUpTo(n, b.size)
}

// TryReserve takes n bytes if less than half of the budget is used afterwards. It is for
// buffers that only make things faster, and may be called with locks held.
func (u *Use) TryReserve(n int) bool { return u == nil || u.tryUpTo(n, u.b.size/2) }

func (u *Use) tryUpTo(n int, most int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return false
	}
	for {
		used := u.b.used.Load()
		if used+int64(n) > most {
			return false
		}
		if u.b.used.CompareAndSwap(used, used+int64(n)) {
			u.n += int64(n)
			u.o.used.Add(int64(n))
			return true
		}
	}
}

// Add takes n bytes that the caller cannot do without, and that are few: the smallest
// buffer with which a session or a relay moves at all. Uses are reset soon afterwards if
// that was too much. It may be called with locks held.
func (u *Use) Add(n int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	if !u.closed {
		u.addLocked(int64(n))
	}
	u.mu.Unlock()
	if b := u.b; b.used.Load() > b.size/16*15 && b.soon.CompareAndSwap(false, true) {
		go func() {
			b.soon.Store(false)
			b.relieve(0)
		}()
	}
}

// Release gives n bytes back. It may be called with locks held.
func (u *Use) Release(n int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.addLocked(-min(int64(n), u.n))
	}
}

// FirstWindow is the window, in bytes, that every stream has: most, or less if the
// budget is small.
func (b *Budget) FirstWindow(most int) int {
	if b == nil {
		return most
	}
	return int(min(int64(most), max(minFirstWindow, b.size/firstStreams)))
}

// Window is the window, in bytes, that a stream may have that would like most and
// starts with first: never less than first, or than most if that is less.
func (u *Use) Window(first, most int) int {
	if u == nil || most <= first {
		return most
	}
	b := u.b
	u.mu.Lock()
	others := b.growth.Load() - u.growth
	u.mu.Unlock()
	room := min(b.size/growthPart-others, b.size/4*3-b.pressure()) / windowPart
	return first + int(min(max(room, 0), int64(most-first)))
}

// SetWindow notes that the stream of u has a window of size bytes, and began with first.
func (u *Use) SetWindow(first, size int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.closed {
		u.setGrowthLocked(int64(max(0, size-first)))
	}
}

func (u *Use) setGrowthLocked(n int64) {
	u.b.growth.Add(n - u.growth)
	u.growth = n
}

// Tight reports whether early data is to be left where it is.
func (b *Budget) Tight() bool { return b != nil && b.pressure() > b.size/8*7 }

// pressure is what is used, and what socket buffers hold beyond as much as the budget:
// the memory for so much is left beside it.
func (b *Budget) pressure() int64 { return b.used.Load() + max(0, b.kernel.Load()-b.size) }

// ErrTight is the end of a wait for memory.
var ErrTight = errors.New("the memory for buffers of connections is used up")

const (
	waitAtMost = time.Second
	waitStep   = 10 * time.Millisecond
)

// Await delays a new stream of the named owner while little memory is left and the owner
// has more than its fair share, for a second at most. The error is the cause of ctx. Admit follows.
func (b *Budget) Await(ctx context.Context, name string) error {
	if !b.Tight() || !b.aboveShare(name) {
		return nil
	}
	b.streams.WithLabelValues("delayed").Inc()
	tick := time.NewTicker(waitStep)
	defer tick.Stop()
	for end := time.Now().Add(waitAtMost); time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if !b.Tight() || !b.aboveShare(name) {
			return nil
		}
	}
	return nil
}

// Admit makes room for a new stream of the named owner if little memory is left and the
// owner has more than its fair share: the largest uses are reset of owners that hold no less than it,
// the largest owner first. If too few can be reset, it returns an error that matches ErrTight. It comes
// last, when nothing else can refuse the stream. The caller holds no lock.
func (b *Budget) Admit(name string) error {
	if !b.Tight() || !b.aboveShare(name) {
		return nil
	}
	b.relief.Lock()
	b.shed(b.pressure()-b.size/16*13, b.ownersFrom(name))
	b.relief.Unlock()
	if !b.Tight() || !b.aboveShare(name) {
		return nil
	}
	b.streams.WithLabelValues("refused").Inc()
	return fmt.Errorf("%w: %d of %d bytes, most of it in buffers that cannot be reset, and %q holds more than its share: raise the memory limit of the container, or find out why applications do not read",
		ErrTight, b.used.Load(), b.size, name)
}

func (b *Budget) aboveShare(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.owners[name]
	return o != nil && o.used.Load() > b.size/int64(len(b.owners))
}

// relieve resets uses if n more bytes would be too many.
func (b *Budget) relieve(n int64) {
	b.relief.Lock()
	defer b.relief.Unlock()
	if b.used.Load()+n <= b.size/16*15 {
		return
	}
	b.shed(b.used.Load()+n-b.size/16*13, b.ownersFrom(""))
}

// shed resets the largest uses of the largest of owners, until they held excess bytes. The
// caller holds relief.
func (b *Budget) shed(excess int64, owners []*holding) {
	for excess > 0 && len(owners) > 0 {
		o := slices.MaxFunc(owners, func(x, y *holding) int { return cmp.Compare(x.used, y.used) })
		if o.uses == nil {
			b.list(o)
		}
		if len(o.uses) == 0 { // nothing of it can be reset
			owners = slices.DeleteFunc(owners, func(x *holding) bool { return x == o })
			continue
		}
		u := o.uses[0]
		o.uses = o.uses[1:]
		if !u.use.reset() {
			continue
		}
		b.resets.WithLabelValues(kindNames[u.use.kind]).Inc()
		u.use.Close()
		o.used -= u.n
		excess -= u.n
	}
}

// holding is what one owner holds.
type holding struct {
	owner *owner
	used  int64
	uses  []held // that hold bytes and can be reset, largest first; nil: not listed yet
}

type held struct {
	use *Use
	n   int64
}

// ownersFrom lists the owners that hold no less than the named one; all if there is none of that name.
func (b *Budget) ownersFrom(name string) []*holding {
	b.mu.Lock()
	defer b.mu.Unlock()
	var least int64
	if o := b.owners[name]; o != nil {
		least = o.used.Load()
	}
	out := make([]*holding, 0, len(b.owners))
	for _, o := range b.owners {
		if n := o.used.Load(); n >= least {
			out = append(out, &holding{owner: o, used: n})
		}
	}
	return out
}

// list lists the uses of x.
func (b *Budget) list(x *holding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x.uses = []held{}
	for u := range x.owner.uses {
		if u.reset == nil {
			continue
		}
		u.mu.Lock()
		n := u.n
		u.mu.Unlock()
		if n > 0 {
			x.uses = append(x.uses, held{u, n})
		}
	}
	slices.SortFunc(x.uses, func(a, b held) int { return cmp.Compare(b.n, a.n) })
}

// Register registers the metrics of b.
func (b *Budget) Register(r prometheus.Registerer) {
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("isthmus_memory_budget_bytes", "Memory limit for connection buffers. 0: no limit.", func() float64 { return float64(b.Size()) })
	gauge("isthmus_memory_used_bytes", "Memory used by connection buffers. Counted only with a limit.", func() float64 { return float64(b.Used()) })
	if b == nil {
		b = &Budget{}
		b.resets, b.streams = newCounters() // nothing is counted
	}
	r.MustRegister(b.resets, b.streams)
}

func newCounters() (resets, streams *prometheus.CounterVec) {
	resets = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_memory_resets_total", Help: "Connections reset because the buffer memory was used up, by the use of that memory (reason)."}, []string{"reason"})
	streams = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_memory_streams_total", Help: "New streams of identities above their share of the buffer memory, by result."}, []string{"result"})
	for _, k := range kindNames {
		resets.WithLabelValues(k)
	}
	for _, r := range [...]string{"delayed", "refused"} {
		streams.WithLabelValues(r)
	}
	return resets, streams
}
