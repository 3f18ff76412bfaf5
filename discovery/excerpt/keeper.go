package excerpt

import (
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
)

// Keeper is a Held that several goroutines use: what it comes to is in force when Take
// returns. Safe for concurrent use.
type Keeper struct {
	apply   func(...discovery.Change)
	follows func(asked string) bool
	now     func() time.Time
	// Reread makes the gateway that leads tell everything once more; nil: nobody can. It may
	// call the Keeper.
	Reread func()

	mu      sync.Mutex // held while it applies: the latest word is applied last
	held    *Held
	version uint64    // of what is held
	heard   time.Time // when a gateway that leads was last known to: zero, none has
	saved   time.Time // what was restored, when that was saved; zero: a gateway has told since
	reread  time.Time // when everything was last asked for once more
}

// rereadEvery is the pause before everything is asked for again, which there was no room for.
const rereadEvery = time.Minute

// NewKeeper returns a Keeper of h. apply brings changes into force; follows says which
// names the node proxy asks for still. Neither may call the Keeper.
func NewKeeper(h *Held, apply func(...discovery.Change), follows func(asked string) bool, now func() time.Time) *Keeper {
	return &Keeper{held: h, apply: apply, follows: follows, now: now}
}

// Lead is [Held.Lead].
func (k *Keeper) Lead(gateway string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.led() {
		k.heard = k.now()
	}
	k.held.Lead(gateway)
}

// Leave notes that nobody leads any more.
func (k *Keeper) Leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.led() {
		k.heard = k.now()
	}
	k.held.leader = ""
}

// led reports whether a gateway leads and has told everything; the caller holds mu.
func (k *Keeper) led() bool { return k.held.leader != "" && !k.held.anew }

// Take is [Held.Take].
func (k *Keeper) Take(m *pb.Excerpt) (answered []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes, answered, err := k.held.Take(m, k.follows, k.now())
	if k.led() {
		k.saved = time.Time{}
	}
	k.bring(changes)
	return answered, err
}

// Announce is [Held.Announce].
func (k *Keeper) Announce(uid string, addresses []netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bring(k.held.Announce(uid, addresses))
}

// Forget is [Held.Forget].
func (k *Keeper) Forget(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bring(k.held.Forget(uid))
}

// Tend lets time pass, and drops what the node proxy has stopped asking for. When there is room
// again for what was left out it is asked for.
func (k *Keeper) Tend() {
	if k.tend() && k.Reread != nil {
		k.Reread()
	}
}

func (k *Keeper) tend() (reread bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	k.bring(k.held.Settle(now))
	k.bring(k.held.Prune(k.follows))
	if !k.held.Again() || now.Sub(k.reread) < rereadEvery {
		return false
	}
	k.reread = now
	return true
}

// bring applies changes; the caller holds mu.
func (k *Keeper) bring(changes []discovery.Change) {
	if len(changes) > 0 {
		k.version++
		k.apply(changes...)
	}
}

// Save is [Held.Save], if something else is held than at version, which it returns anew,
// or anyway. It says of what is held when that was last known to be current; without a
// gateway that has told everything there is nothing to save.
func (k *Keeper) Save(version uint64, anyway bool) (data []byte, now uint64, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at := k.heard
	if k.led() {
		at = k.now()
	}
	if !k.held.began || at.IsZero() || k.version == version && !anyway {
		return nil, version, nil
	}
	data, err = k.held.Save(at)
	return data, k.version, err
}

// Restore is [Held.Restore]; ask is told the names first, so that they are asked for.
func (k *Keeper) Restore(data []byte, ask func(names []string)) (at time.Time, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	changes, names, at, err := k.held.Restore(data)
	if err != nil || len(changes) == 0 {
		return at, err
	}
	ask(names)
	k.saved = at
	k.bring(changes)
	return at, nil
}

// RestorePolicies is [Held.RestorePolicies].
func (k *Keeper) RestorePolicies(data []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held.RestorePolicies(data)
}

// Told is [Held.Told].
func (k *Keeper) Told() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held.Told()
}

// Means is [Held.Means].
func (k *Keeper) Means(asked string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held.Means(asked)
}

// Current returns when what is held was last known to be current; zero while a gateway leads that
// has told everything, or if none ever has.
func (k *Keeper) Current() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.led():
		return time.Time{}
	case !k.saved.IsZero():
		return k.saved
	}
	return k.heard
}

// Status tells how it stands.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.held.Status()
	s.Gateway, s.Told, s.Cached = k.held.leader, k.held.began, k.saved
	switch now := k.now(); {
	case k.led():
	case !k.saved.IsZero():
		s.AgeMS = max(0, now.Sub(k.saved).Milliseconds())
	case !k.heard.IsZero():
		s.AgeMS = max(0, now.Sub(k.heard).Milliseconds())
	}
	return s
}
