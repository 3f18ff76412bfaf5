package ledger

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// Fresh is how long a number that this reader has drawn proves anything: what
	// a replay is worth at most.
	Fresh = time.Minute
	// Silence is after how long without a statement an instance with a live
	// sibling is ignored: three heartbeats.
	Silence = 6 * time.Second
	// Lapse is how long the last health of a silent group counts.
	Lapse = time.Minute
	// Absence is how long an instance may be lapsed while another group of its network is
	// heard, and knows everything: then it is gone, and what it alone exports with it.
	Absence = 5 * time.Minute
	// heardLonger is how much longer than an instance its sibling must have been
	// heard for that. Heartbeats are 2 s apart, so a sibling that lives was heard
	// in the last third of Silence; one that fell silent together with it was not.
	heardLonger = 4 * time.Second
)

// Limits bound what is kept. Beyond them an instance is not believed at all.
type Limits struct {
	Records      int // of an instance
	Bytes        int // of an instance
	Instances    int // of a network
	NetworkBytes int // of all instances of a network
}

// DefaultLimits have room for 10 000 services with two ports at an instance, and
// for two instances of that size at a network.
var DefaultLimits = Limits{Records: 50_000, Bytes: 16 << 20, Instances: 16, NetworkBytes: 32 << 20}

// Phase is how far an instance is believed.
type Phase uint8

const (
	Pending Phase = iota // has not answered a number of ours yet, or we do not have all that it says
	Live
	Silent  // its last health counts
	Lapsed  // its exports hold until it is forgotten, its health is unknown
	Ignored // a sibling of its group, or another process of its gateway, speaks
)

func (p Phase) String() string {
	names := [...]string{"pending", "live", "silent", "lapsed", "ignored"}
	if int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("phase(%d)", p)
}

// Change names a subject whose merged view may be another. With All it is
// everything of the network.
type Change struct {
	Network string
	Key     record.Key
	All     bool
}

// Ledger is what is believed. The zero value is not usable; see [New].
type Ledger struct {
	known     networkkey.Known
	limits    Limits
	instances map[record.Instance]*instance
	networks  map[string]map[record.Instance]*instance
	order     []*instance // all, sorted
	own       []*instance // what this process itself says
	numbers   []drawn
	due       time.Time // before it nothing changes by time alone; zero: nothing ever does
}

// drawn is a number of ours and when it was drawn.
type drawn struct {
	number uint64
	at     time.Time
}

// instance is what is held of one instance.
type instance struct {
	id          record.Instance
	own         bool
	certificate *networkkey.Certificate
	raw         []byte // of certificate
	renewed     bool   // certificate is a later one than readers were told of

	newest    record.Statement // without its changes
	statement []byte           // newest, as signed
	signature []byte

	set      *record.Set
	complete bool // the root of set is that of newest
	refused  error
	ports    map[string][]uint16 // service → ports whose health is held
	problems map[string]error
	more     int // problems beyond maxProblems

	heard    time.Time // when newest came
	vouched  time.Time // when complete and fresh last; zero: never
	attested time.Time // when the newest of our numbers that it has answered was drawn
	phase    Phase
	live     time.Time       // since when it is vouched for without a silence
	gateway  *record.Network // nil until it says so
}

// New returns a ledger that knows no instance.
func New(known networkkey.Known, limits Limits) *Ledger {
	return &Ledger{
		known: known, limits: limits,
		instances: map[record.Instance]*instance{}, networks: map[string]map[record.Instance]*instance{},
	}
}

// Draw makes number the one that statements have to answer. Call it every 15 s
// with a number from a source that nobody can foretell.
func (l *Ledger) Draw(number uint64, now time.Time) {
	l.numbers = slices.DeleteFunc(l.numbers, func(d drawn) bool { return now.Sub(d.at) > Fresh })
	if len(l.numbers) >= 64 {
		l.numbers = l.numbers[1:]
	}
	l.numbers = append(l.numbers, drawn{number, now})
}

// SetKnown replaces the networks that are known: whoever none of the new keys
// vouches for is forgotten at once, exports included.
func (l *Ledger) SetKnown(known networkkey.Known, now time.Time) []Change {
	l.known = known
	var out []Change
	for _, i := range slices.Clone(l.order) {
		if i.own {
			continue
		}
		if _, err := known.Verify(i.raw, i.certificate.NotAfter); err != nil {
			l.drop(i)
			out = append(out, Change{Network: i.certificate.Network, All: true})
			l.due = now // siblings of it may count now
		}
	}
	return merged(append(out, l.Advance(now)...))
}

func byID(a, b *instance) int { return bytes.Compare(a.id[:], b.id[:]) }

func (l *Ledger) add(i *instance) {
	l.instances[i.id] = i
	n := l.networks[i.certificate.Network]
	if n == nil {
		n = map[record.Instance]*instance{}
		l.networks[i.certificate.Network] = n
	}
	n[i.id] = i
	at, _ := slices.BinarySearchFunc(l.order, i, byID)
	l.order = slices.Insert(l.order, at, i)
	if i.own {
		l.own = append(l.own, i)
	}
}

func (l *Ledger) drop(i *instance) {
	delete(l.instances, i.id)
	delete(l.networks[i.certificate.Network], i.id)
	if len(l.networks[i.certificate.Network]) == 0 {
		delete(l.networks, i.certificate.Network)
	}
	if at, found := slices.BinarySearchFunc(l.order, i, byID); found {
		l.order = slices.Delete(l.order, at, at+1)
	}
}

// room makes room for one more instance of i's network, and returns what changed by
// that: those whose word counts least go first. One that is silent goes last, and
// before others one of the same gateway, of which i is another process: one that
// crashes and starts again every few seconds must not keep the next one out. It never
// forgets one that is live.
func (l *Ledger) room(i *instance) ([]Change, bool) {
	n := l.networks[i.certificate.Network]
	if len(n) < l.limits.Instances {
		return nil, true
	}
	rank := func(o *instance) int {
		switch {
		case o.own || o.phase == Live:
			return 0
		case o.phase == Ignored:
			return 5
		case o.phase == Pending:
			return 4
		case o.phase == Lapsed:
			return 3
		case o.certificate.Gateway == i.certificate.Gateway:
			return 2
		}
		return 1
	}
	var worst *instance
	for _, o := range n {
		if rank(o) > 0 && (worst == nil || rank(o) > rank(worst) || rank(o) == rank(worst) && o.heard.Before(worst.heard)) {
			worst = o
		}
	}
	if worst == nil {
		return nil, false
	}
	l.drop(worst)
	if worst.phase == Lapsed || worst.phase == Silent { // something of it counted
		return []Change{{Network: worst.certificate.Network, All: true}}, true
	}
	return nil, true
}

func (l *Ledger) networkBytes(network string) (sum int) {
	for _, i := range l.networks[network] {
		sum += i.set.Bytes()
	}
	return sum
}

// group is the siblings that may speak for i.
func (i *instance) group() string {
	if i.gateway == nil {
		return ""
	}
	return i.gateway.Group
}

// siblingOf says whether s may speak for i: one of its group, or another process of its
// gateway, which may have been given another group.
func (i *instance) siblingOf(s *instance) bool {
	return s.group() == i.group() || s.certificate.Gateway == i.certificate.Gateway
}

// Advance lets time pass: it returns what changed by that alone.
func (l *Ledger) Advance(now time.Time) []Change {
	l.settle(now)
	if l.due.IsZero() || now.Before(l.due) {
		return nil
	}
	l.due = time.Time{}
	var out []Change
	for _, n := range l.networks {
		out = append(out, l.review(n, now)...)
	}
	return merged(out)
}

// follow returns what changes since i, which is held, has said something: for itself and
// its siblings, and by time.
func (l *Ledger) follow(i *instance, now time.Time) []Change {
	l.settle(now)
	return append(l.review(l.networks[i.certificate.Network], now), l.Advance(now)...)
}

// settle notes that what this process says is vouched for now.
func (l *Ledger) settle(now time.Time) {
	for _, i := range l.own {
		i.vouched, i.attested = now, now
	}
}

// review returns what has changed of the instances of one network, and notes when that
// is due again.
func (l *Ledger) review(network map[record.Instance]*instance, now time.Time) (out []Change) {
	for _, i := range network {
		phase := l.phaseOf(i, now)
		if phase != i.phase {
			i.phase = phase
			out = append(out, Change{Network: i.certificate.Network, All: true})
		}
		if !i.own && now.Sub(i.heard) > Lapse && (phase == Ignored || phase == Pending) {
			l.drop(i) // said nothing that counts, so nothing changes, but it may have spoken for another one
			return append(out, l.review(network, now)...)
		}
		if l.outlived(i, now) {
			l.drop(i)
			return append(append(out, Change{Network: i.certificate.Network, All: true}), l.review(network, now)...)
		}
		if t := i.next(now); !t.IsZero() && (l.due.IsZero() || t.Before(l.due)) {
			l.due = t
		}
	}
	return out
}

// next is when time alone may change how far i is believed; zero: never.
func (i *instance) next(now time.Time) (next time.Time) {
	if i.own {
		return next
	}
	for _, t := range [...]time.Time{i.vouched.Add(Silence + 1), i.vouched.Add(Lapse + 1), i.heard.Add(Lapse + 1),
		i.vouched.Add(Absence + 1), i.live.Add(Absence + 1), i.certificate.NotAfter.Add(networkkey.Tolerance + 1)} {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	return next
}

func (l *Ledger) phaseOf(i *instance, now time.Time) Phase {
	quiet := now.Sub(i.vouched)
	switch {
	case i.vouched.IsZero():
		return Pending
	case quiet <= Silence:
		return Live
	case l.spokenFor(i):
		return Ignored
	case quiet <= Lapse:
		return Silent
	}
	return Lapsed
}

// spokenFor says whether a sibling was heard for so much longer than i that i
// is gone and not all of them.
func (l *Ledger) spokenFor(i *instance) bool {
	for _, s := range l.networks[i.certificate.Network] {
		if s != i && s.newest.Synchronised && i.siblingOf(s) && s.vouched.Sub(i.vouched) >= heardLonger {
			return true
		}
	}
	return false
}

// outlived says whether i has lapsed and is to be forgotten: its certificate has ended, or
// another group of its network has been heard for so long without it that this reader is
// not the one who is cut off. What this process says itself shows nothing of that. If it
// speaks again it is taken anew.
func (l *Ledger) outlived(i *instance, now time.Time) bool {
	if i.phase != Lapsed {
		return false
	}
	if !i.certificate.Valid(now) {
		return true
	}
	if now.Sub(i.vouched) <= Absence {
		return false
	}
	for _, s := range l.networks[i.certificate.Network] {
		if !s.own && s.complete && s.newest.Synchronised && now.Sub(s.vouched) <= Silence && now.Sub(s.live) > Absence {
			return true
		}
	}
	return false
}

// Next returns when Advance may have something to do, zero if it never has. It costs the
// same however many instances are held: who is heard again is not looked for until then.
func (l *Ledger) Next() time.Time { return l.due }

// merged drops changes that another one includes.
func merged(in []Change) []Change {
	if len(in) == 0 {
		return nil
	}
	all := map[string]bool{}
	for _, c := range in {
		all[c.Network] = all[c.Network] || c.All
	}
	seen := map[Change]bool{}
	var out []Change
	for _, c := range in {
		if all[c.Network] {
			c = Change{Network: c.Network, All: true}
		}
		if !seen[c] {
			seen[c] = true
			out = append(out, c)
		}
	}
	return out
}
