package warm

import (
	"context"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
)

// Key says whose set it is, and of what.
type Key struct {
	Source  spiffeid.ID
	From    string // UID of the one workload whose connections use them; empty: all of Source
	Network string
	Service string // its hostname
	Port    uint16 // of the service
}

// Session names a session that was opened, or is being opened, for a set.
type Session struct {
	Key
	ID uint64
}

// Config is what a Keeper calls. All functions must be safe for concurrent use; none
// is called with a lock held but Share and Silent.
type Config struct {
	// Open opens s as r says and returns who has answered. It must honour ctx. gone
	// says that the gateway does not offer the endpoint that was asked for by name.
	Open func(ctx context.Context, s Session, r warmset.Request) (a warmset.Answer, gone bool, err error)
	// Retire lets s take no new stream; it closes when its streams have ended.
	Retire func(s Session)
	// Share is what is known now; it must not wait, and not call the Keeper.
	Share func(Key) warmset.Share
	// Silent, unless nil, reports whether s owes an answer and nothing comes; it must not wait, and not call the Keeper.
	// Connections go on such a session only if all are.
	Silent func(s Session) bool
	// Random returns numbers in [0, 1), Seed any number.
	Random func() float64
	Seed   func() uint64

	Idle    time.Duration // for how long a set is kept without connections; default 5 min
	Timeout time.Duration // of one Open; default 15 s
	Opening int           // at once, over all sets of one network; default 8
}

func (c Config) withDefaults() Config {
	if c.Idle == 0 {
		c.Idle = 5 * time.Minute
	}
	if c.Timeout == 0 {
		c.Timeout = 15 * time.Second
	}
	if c.Opening == 0 {
		c.Opening = 8
	}
	return c
}

// Keeper runs warm sets. Safe for concurrent use. An entry's lock is taken with mu
// held or without, never the other way round.
type Keeper struct {
	cfg  Config
	ctx  context.Context // of what is being opened
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.RWMutex
	closed bool
	sets   map[Key]*entry
}

// New returns a Keeper without sets. Close it.
func New(c Config) *Keeper {
	c = c.withDefaults()
	k := &Keeper{cfg: c, sets: map[Key]*entry{}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

// Choose counts a connection and returns the session that it goes on, until Done: one
// that fits, unless nil, accepts; it must not wait, and not call the Keeper. ok is false
// if there is none: then gateway chooses, and if c.ID is not zero, and c.Joined is false,
// the caller opens the session under that ID by way of it, and calls Opened (and then Use)
// or Failed.
func (k *Keeper) Choose(key Key, gateway string, fits func(warmset.Choice) bool) (c warmset.Choice, ok bool) {
	for {
		e := k.entry(key)
		if e == nil {
			return c, false
		}
		if c, ok, ended := e.choose(time.Now(), gateway, fits); !ended {
			return c, ok
		}
	}
}

// entry returns the entry of key; nil after Close.
func (k *Keeper) entry(key Key) *entry {
	k.mu.RLock()
	e := k.sets[key]
	k.mu.RUnlock()
	if e != nil {
		return e
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if e = k.sets[key]; e == nil && !k.closed {
		e = newEntry(k, key)
		k.sets[key] = e
	}
	return e
}

// find returns the entry of key, or nil.
func (k *Keeper) find(key Key) *entry {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.sets[key]
}

// Opened takes in that a connection's own session was opened. If it is not kept, it
// serves that connection and is retired.
func (k *Keeper) Opened(s Session, a warmset.Answer) (kept bool) {
	if e := k.find(s.Key); e != nil {
		e.do(func(now time.Time) { kept = e.set.Opened(s.ID, a, now) })
	}
	if !kept {
		k.cfg.Retire(s)
	}
	return kept
}

// Failed takes in that a connection's own session was not opened.
func (k *Keeper) Failed(s Session, gone bool) {
	k.with(s, func(e *entry, now time.Time) { e.set.Failed(s.ID, gone, now) })
}

// Use counts a connection on a session that was kept, until Done. It returns false, and
// counts nothing, if it was not.
func (k *Keeper) Use(s Session) (counted bool) {
	k.with(s, func(e *entry, now time.Time) { counted = e.set.Use(s.ID, now) })
	return counted
}

// Done ends a connection that was chosen or counted.
func (k *Keeper) Done(s Session) {
	if e := k.find(s.Key); e != nil {
		e.mu.Lock()
		e.set.Done(s.ID) // nothing comes of it before time has passed
		e.mu.Unlock()
	}
}

// Knows reports whether s is held, or being opened.
func (k *Keeper) Knows(s Session) bool {
	e := k.find(s.Key)
	if e == nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.set.Knows(s.ID)
}

// Broken takes in that s cannot be used any more.
func (k *Keeper) Broken(s Session) {
	k.with(s, func(e *entry, now time.Time) { e.set.Broken(s.ID, now) })
}

func (k *Keeper) with(s Session, f func(*entry, time.Time)) {
	if e := k.find(s.Key); e != nil {
		e.do(func(now time.Time) { f(e, now) })
	}
}

// Revise asks for what is known of the shares whose keys match, and takes it in.
func (k *Keeper) Revise(match func(Key) bool) {
	for _, e := range k.all(match) {
		e.do(func(now time.Time) { e.set.Revise(k.cfg.Share(e.key), now) })
	}
}

func (k *Keeper) all(match func(Key) bool) (out []*entry) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for key, e := range k.sets {
		if match(key) {
			out = append(out, e)
		}
	}
	return out
}

// Status is how one set stands.
type Status struct {
	Key
	warmset.Status
}

// Status returns how every set stands, in no order.
func (k *Keeper) Status() (out []Status) {
	now := time.Now()
	for _, e := range k.all(func(Key) bool { return true }) {
		e.mu.Lock()
		if !e.ended {
			out = append(out, Status{e.key, e.set.Status(now)})
		}
		e.mu.Unlock()
	}
	return out
}

// Len returns how many sets there are.
func (k *Keeper) Len() int {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return len(k.sets)
}

// Close ends every set, and returns when nothing is being opened any more.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	k.stop()
	for _, e := range k.all(func(Key) bool { return true }) {
		e.endIf(func(time.Time) bool { return true })
	}
	k.wg.Wait()
}
