// Package vip gives virtual addresses to imported services and remembers them ([Ledger]).
//
// It promises that two services never have the same address, that a service keeps its
// own for as long as it is imported, whoever leads and in whatever order services come,
// and that an address which was given back is nobody's for [Quarantine]: somebody may
// remember it, and a leader of before may be about to write it. A ledger is written
// before a service is made that has an address of it, also if it stays as it is, by one
// writer at a time: who brings an older one makes nothing, and has to read it again.
//
// No network has more than four times what is left free: so whatever one exports, others
// get addresses too, and those who come later.
//
// Pure: time is an argument.
package vip

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"
)

const (
	// Quarantine is how long an address belongs to nobody after it was given back.
	Quarantine = 10 * time.Minute
	// MaxText is how long a ledger may become, in bytes, as text: what one object of
	// Kubernetes takes (1 MiB), with room to spare.
	MaxText = 900 << 10
	// maxAdopted is how long it may become by addresses that are in use already.
	maxAdopted = 1000 << 10
	// share is how many times what is left free a network may have: with the bound of a
	// buffer that several share (Choudhury and Hahne, "Dynamic queue length thresholds for
	// shared-memory packet switches", 1998), one network alone may have four fifths, and
	// ten that want all they can get leave each other and a newcomer a fair part.
	share = 4
)

// Name is a service.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Ledger is who has which number in the ranges. Not safe for concurrent use; make it with
// New.
type Ledger struct {
	ranges  Ranges
	usable  int
	entries map[Name]entry
	holders map[uint32]Name
	lost    map[uint32]int64    // numbers that somebody had whose name cannot be read, and since when
	blind   int64               // since when some numbers cannot be read that somebody had; 0: all are known
	size    int                 // as text
	used    map[string]usage    // by network
	expired int64               // when expire last looked, in Unix seconds
	avoided map[uint32]struct{} // numbers that nobody has here and that are in use (Avoid)
}

// entry is what one service has.
type entry struct {
	number   uint32
	network  string // for whose exports
	released int64  // when it was given back, in Unix seconds; 0: it was not
}

// usage is what a network has, with what was given back and is nobody's yet.
type usage struct{ numbers, bytes int }

// New returns a ledger in which nobody has anything.
func New(r Ranges) *Ledger {
	return &Ledger{ranges: r, usable: r.usable(), entries: map[Name]entry{}, holders: map[uint32]Name{}, lost: map[uint32]int64{}, used: map[string]usage{}}
}

// Lost returns a ledger in the place of one that is gone: what is in use is adopted, and nobody gets any other
// address until Quarantine is over.
func Lost(r Ranges, now time.Time) *Ledger {
	l := New(r)
	l.blind = now.Unix()
	return l
}

// entrySize is how long the line of an entry may be, with a number and a time of any length.
func entrySize(n Name, network string) int {
	return len(n.Namespace) + len(n.Name) + len(network) + 10 + 1 + 2 + 1 + 20 + 1
}

// account adds what n has, or with -1 takes it away, at its network.
func (l *Ledger) account(n Name, e entry, by int) {
	size := by * entrySize(n, e.network)
	l.size += size
	u := l.used[e.network]
	u.numbers, u.bytes = u.numbers+by, u.bytes+size
	if l.used[e.network] = u; u == (usage{}) {
		delete(l.used, e.network)
	}
}

func (l *Ledger) give(n Name, e entry) {
	delete(l.lost, e.number)
	l.entries[n], l.holders[e.number] = e, n
	l.account(n, e, 1)
}

func (l *Ledger) drop(n Name) {
	if e, ok := l.entries[n]; ok {
		delete(l.entries, n)
		delete(l.holders, e.number)
		l.account(n, e, -1)
	}
}

// Addresses returns those of n, one of each family; none if it has no number.
func (l *Ledger) Addresses(n Name) []netip.Addr {
	e, ok := l.entries[n]
	if !ok || e.released != 0 {
		return nil
	}
	return l.ranges.at(e.number)
}

// Adopt gives n the number of addresses that it has already, for the exports of that of these networks
// which has least, if they are in the ranges and nobody has it: of what a lost ledger said. What no
// network exports is of the network "", and has, with what else is, no more than a network's share: who writes
// ServiceImports takes nobody's addresses with that. It does nothing for one that has a number, unless
// it is this and was given back: then it was not.
func (l *Ledger) Adopt(n Name, networks []string, addresses []netip.Addr) (changed bool) {
	number, ok := l.ranges.numberOf(addresses)
	if e, has := l.entries[n]; has {
		if !ok || number != e.number || e.released == 0 {
			return false
		}
		e.released = 0
		l.entries[n] = e
		return true
	}
	network := ""
	if len(networks) > 0 {
		network = l.least(networks)
	}
	if size := entrySize(n, network); !ok || l.holders[number] != (Name{}) || l.size+size > maxAdopted || network == "" && l.beyond(network, size) {
		return false
	}
	l.give(n, entry{number: number, network: network})
	return true
}

// Avoid says which addresses are in use that Adopt has not given to anybody, in place of what it said
// before: they are the last that Assign gives to others. Not kept in the text.
func (l *Ledger) Avoid(addresses []netip.Addr) {
	l.avoided = nil
	for _, a := range addresses {
		number, ok := l.ranges.numberOf([]netip.Addr{a})
		if !ok || l.holders[number] != (Name{}) {
			continue
		}
		if l.avoided == nil {
			l.avoided = map[uint32]struct{}{}
		}
		l.avoided[number] = struct{}{}
	}
}

// beyond reports whether one more number, and size more bytes, are beyond the share of a network.
func (l *Ledger) beyond(network string, size int) bool {
	u := l.used[network]
	return u.numbers >= share*(l.usable-len(l.holders)-len(l.lost)) || u.bytes+size > share*(MaxText-l.size)
}

// Why is why a service gets no address. The zero Why is that it has one.
type Why uint8

// The reasons.
const (
	None       Why = iota
	Exhausted      // no number is free, or no room in the ledger
	Share          // the networks that export it have as much as they may
	Unreadable     // which numbers were given is not known, until Quarantine is over
)

// Assign gives n a number if it has none, for the exports of that of these networks which has
// least, of which there is at least one: the number that it had lately, or else the first that is
// free behind one that follows from its name. A number that it has is the least one's from then on.
func (l *Ledger) Assign(n Name, networks []string, now time.Time) (changed bool, why Why) {
	if e, has := l.entries[n]; has && l.ranges.has(e.number) {
		next := entry{number: e.number, network: e.network}
		least := l.least(networks)
		if !slices.Contains(networks, e.network) || l.used[least].bytes+entrySize(n, least) < l.used[e.network].bytes {
			next.network = least
		}
		if next == e {
			return false, None
		}
		l.drop(n)
		l.give(n, next)
		return true, None
	}
	l.drop(n) // the ranges are others than before
	network := l.least(networks)
	number, why := l.free(n, network)
	if why != None && l.expire(now) {
		number, why = l.free(n, network)
	}
	if why == None {
		l.give(n, entry{number: number, network: network})
	}
	return why == None, why
}

// least is which of the networks has least.
func (l *Ledger) least(networks []string) string {
	return slices.MinFunc(networks, func(a, b string) int {
		return cmp.Or(cmp.Compare(l.used[a].bytes, l.used[b].bytes), cmp.Compare(a, b))
	})
}

// free returns a number that n can have.
func (l *Ledger) free(n Name, network string) (number uint32, why Why) {
	size := entrySize(n, network)
	numbers, bytes := l.usable-len(l.holders)-len(l.lost), MaxText-l.size
	switch {
	case numbers <= 0 || bytes < size:
		return 0, Exhausted
	case l.blind != 0:
		return 0, Unreadable
	case l.beyond(network, size):
		return 0, Share
	}
	h := fnv.New32a()
	h.Write([]byte(n.String()))
	start, of := h.Sum32()%l.ranges.size(), l.ranges.size()
	last, why := uint32(0), Exhausted
	for i := range of {
		number = (start + i) % of
		_, taken := l.holders[number]
		_, lost := l.lost[number]
		if taken || lost || !l.ranges.has(number) {
			continue
		}
		if _, avoid := l.avoided[number]; !avoid {
			return number, None
		}
		if why != None {
			last, why = number, None
		}
	}
	return last, why
}

// Release gives back what n has, for others after Quarantine.
func (l *Ledger) Release(n Name, now time.Time) (changed bool) {
	e, has := l.entries[n]
	if !has || e.released != 0 {
		return false
	}
	e.released = now.Unix()
	l.entries[n] = e
	return true
}

// expire forgets what was given back long ago. It looks once for each time.
func (l *Ledger) expire(now time.Time) (changed bool) {
	if l.expired == now.Unix() {
		return false
	}
	l.expired = now.Unix()
	for n, e := range l.entries {
		if e.released == 0 {
			continue
		}
		if over(&e.released, now) {
			l.drop(n)
			changed = true
			continue
		}
		l.entries[n] = e
	}
	for number, at := range l.lost {
		if l.lost[number] = at; over(&at, now) {
			delete(l.lost, number)
			changed = true
			continue
		}
		l.lost[number] = at
	}
	if l.blind != 0 && over(&l.blind, now) {
		l.blind = 0
		changed = true
	}
	return changed
}

// over reports whether the quarantine since a time is. A time that lies ahead is one of
// another clock, and counts from now on.
func over(at *int64, now time.Time) bool {
	if *at > now.Unix()+60 {
		*at = now.Unix()
	}
	return now.Unix()-*at >= int64(Quarantine/time.Second)
}

// Names returns who has a number that was not given back, sorted.
func (l *Ledger) Names() []Name {
	var out []Name
	for n, e := range l.entries {
		if e.released == 0 {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, Name.Compare)
	return out
}

// Used is how many numbers are not free, and how many there are.
func (l *Ledger) Used() (used, of int) { return len(l.holders) + len(l.lost), l.usable }

// UsedBy is how many numbers a network has, with those that it gave back lately.
func (l *Ledger) UsedBy(network string) int { return l.used[network].numbers }

// String returns n's reason for people.
func (w Why) String() string {
	switch w {
	case None:
		return ""
	case Share:
		return "the networks that export it have as many virtual addresses as they may: four times what is left for others"
	case Unreadable:
		return fmt.Sprintf("not all that the ledger of virtual addresses said is known, and until %v later nobody gets an address that might be somebody's", Quarantine)
	}
	return "no virtual address is free for it"
}
