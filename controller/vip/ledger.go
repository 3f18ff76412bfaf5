// Package vip gives virtual addresses to imported services and remembers them ([Ledger]).
//
// It promises that two services never have the same address, that a service keeps its
// own for as long as it is imported, whoever leads and in whatever order services come,
// and that an address which was given back is nobody's for [Quarantine]: somebody may
// remember it, and a leader of before may be about to write it. A ledger is written
// before a service is made that has an address of it, also if it stays as it is, by one
// writer at a time: who brings an older one makes nothing, and has to read it again.
//
// Pure: time is an argument.
package vip

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Quarantine is how long an address belongs to nobody after it was given back.
const Quarantine = 10 * time.Minute

// MaxText is how long a ledger may become, in bytes, as text: what one object of
// Kubernetes takes, with room to spare.
const MaxText = 900 << 10

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
	ranges   Ranges
	numbers  map[Name]uint32
	holders  map[uint32]Name
	released map[Name]int64 // of numbers: when they were given back, in Unix seconds
	size     int            // as text
}

// New returns a ledger in which nobody has anything.
func New(r Ranges) *Ledger {
	return &Ledger{ranges: r, numbers: map[Name]uint32{}, holders: map[uint32]Name{}, released: map[Name]int64{}}
}

// Parse reads what String has written. A line that cannot be is an error: who has lost
// the ledger makes a new one of the addresses that are in use.
func Parse(r Ranges, text string) (*Ledger, error) {
	l := New(r)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 && len(fields) != 3 {
			return nil, fmt.Errorf("%.80q: want a number, namespace/name, and perhaps a time", line)
		}
		number, err := strconv.ParseUint(fields[0], 10, 32)
		namespace, name, ok := strings.Cut(fields[1], "/")
		if err != nil || !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%.80q: want a number, namespace/name, and perhaps a time", line)
		}
		n := Name{namespace, name}
		if _, twice := l.numbers[n]; twice || l.holders[uint32(number)] != (Name{}) {
			return nil, fmt.Errorf("%.80q: the number or the name is on an earlier line too", line)
		}
		l.give(n, uint32(number))
		if len(fields) == 3 {
			at, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%.80q: %q is not a time in Unix seconds", line, fields[2])
			}
			l.released[n] = at
		}
	}
	return l, nil
}

// String returns l as text, one line for each number, sorted.
func (l *Ledger) String() string {
	var b strings.Builder
	for _, number := range slices.Sorted(maps.Keys(l.holders)) {
		n := l.holders[number]
		fmt.Fprintf(&b, "%d %s", number, n)
		if at, ok := l.released[n]; ok {
			fmt.Fprintf(&b, " %d", at)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// entrySize is the greatest length of a line for n: number, two spaces, time, newline.
func entrySize(n Name) int { return len(n.Namespace) + len(n.Name) + 10 + 1 + 2 + 20 + 1 }

func (l *Ledger) give(n Name, number uint32) {
	l.numbers[n], l.holders[number] = number, n
	l.size += entrySize(n)
}

func (l *Ledger) drop(n Name) {
	number, ok := l.numbers[n]
	if !ok {
		return
	}
	delete(l.numbers, n)
	delete(l.holders, number)
	delete(l.released, n)
	l.size -= entrySize(n)
}

// Addresses returns those of n, one of each family; none if it has no number.
func (l *Ledger) Addresses(n Name) []netip.Addr {
	number, ok := l.numbers[n]
	if _, gone := l.released[n]; !ok || gone {
		return nil
	}
	return l.ranges.at(number)
}

// Adopt gives n the number of addresses that it has already, if they are in the ranges
// and nobody has it: of what a lost ledger said. It does nothing for one that has a
// number.
func (l *Ledger) Adopt(n Name, addresses []netip.Addr) (changed bool) {
	if _, has := l.numbers[n]; has {
		return false
	}
	number, ok := l.ranges.numberOf(addresses)
	if !ok || l.holders[number] != (Name{}) || l.size+entrySize(n) > MaxText {
		return false
	}
	l.give(n, number)
	return true
}

// Assign gives n a number if it has none: the one that it had lately, or else the first
// that is free behind one that follows from its name. ok is false if none is free.
func (l *Ledger) Assign(n Name, now time.Time) (changed, ok bool) {
	if number, has := l.numbers[n]; has {
		_, changed = l.released[n]
		delete(l.released, n)
		if l.ranges.has(number) {
			return changed, true
		}
		l.drop(n) // the ranges are others than before
	}
	if l.size+entrySize(n) > MaxText {
		l.expire(now)
		if l.size+entrySize(n) > MaxText {
			return false, false
		}
	}
	number, ok := l.free(n)
	if !ok && l.expire(now) {
		number, ok = l.free(n)
	}
	if ok {
		l.give(n, number)
	}
	return ok, ok
}

func (l *Ledger) free(n Name) (number uint32, ok bool) {
	size := l.ranges.size()
	if size == 0 {
		return 0, false
	}
	h := fnv.New32a()
	h.Write([]byte(n.String()))
	start := h.Sum32() % size
	for i := range size {
		number = (start + i) % size
		if _, taken := l.holders[number]; !taken && l.ranges.has(number) {
			return number, true
		}
	}
	return 0, false
}

// Release gives back what n has, for others after Quarantine.
func (l *Ledger) Release(n Name, now time.Time) (changed bool) {
	if _, has := l.numbers[n]; !has {
		return false
	}
	if _, gone := l.released[n]; gone {
		return false
	}
	l.released[n] = now.Unix()
	return true
}

// expire forgets what was given back long ago. A time that lies ahead is one of another
// clock, and counts from now on.
func (l *Ledger) expire(now time.Time) (changed bool) {
	for n, at := range l.released {
		switch {
		case at > now.Unix()+60:
			l.released[n] = now.Unix()
		case now.Unix()-at >= int64(Quarantine/time.Second):
			l.drop(n)
			changed = true
		}
	}
	return changed
}

// Names returns who has a number that was not given back, sorted.
func (l *Ledger) Names() []Name {
	var out []Name
	for n := range l.numbers {
		if _, gone := l.released[n]; !gone {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, Name.Compare)
	return out
}

// Used is how many numbers are not free, and how many there are.
func (l *Ledger) Used() (used, of int) { return len(l.holders), int(l.ranges.size()) }
