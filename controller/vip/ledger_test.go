package vip

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// store is the API server of a test: one ledger, and the imports, each with a version that
// a writer must know.
type store struct {
	text    string
	version int
	imports map[Name]stored
}

type stored struct {
	addresses []netip.Addr
	version   int
}

// leader is a process that thinks that it leads.
type leader struct {
	ranges  Ranges
	ledger  *Ledger
	version int
	seen    map[Name]int // versions of imports, as its informer told
}

func (l *leader) read(s *store, now time.Time) {
	l.ledger, l.version = nil, s.version
	l.ledger, _ = Parse(l.ranges, s.text, now)
	l.seen = map[Name]int{}
	for n, i := range s.imports {
		l.seen[n] = i.version
		l.ledger.Adopt(n, []string{"east"}, i.addresses)
	}
}

// assign makes import n as a leader does: the ledger first, and then the import, each of
// which the version that it knows must be that of.
func (l *leader) assign(s *store, n Name, now time.Time) {
	changed, why := l.ledger.Assign(n, networksOf(n), now)
	if why != None {
		return
	}
	if _, exists := s.imports[n]; changed || !exists { // also if the ledger stays as it is
		if l.version != s.version {
			l.read(s, now)
			return // again later
		}
		s.text = l.ledger.String()
		s.version++
		l.version = s.version
	}
	if at, exists := s.imports[n]; exists && at.version != l.seen[n] {
		l.read(s, now)
		return
	}
	i := stored{l.ledger.Addresses(n), s.imports[n].version + 1}
	s.imports[n], l.seen[n] = i, i.version
}

func (l *leader) release(s *store, n Name, now time.Time) {
	if at, exists := s.imports[n]; exists {
		if at.version != l.seen[n] {
			l.read(s, now)
			return
		}
		delete(s.imports, n)
	}
	if !l.ledger.Release(n, now) {
		return
	}
	if l.version != s.version {
		l.read(s, now)
		return
	}
	s.text = l.ledger.String()
	s.version++
	l.version = s.version
}

func networksOf(n Name) []string { return []string{[]string{"east", "north"}[len(n.Name)%2]} }

// damage makes one line of a ledger such as cannot be read, or contradicts it.
func damage(rng *rand.Rand, text string) string {
	lines := strings.SplitAfter(text, "\n")
	at := rng.IntN(len(lines))
	line := strings.TrimSuffix(lines[at], "\n")
	number, rest, _ := strings.Cut(line, " ")
	lines[at] = []string{"x" + line, number, line + "/", number + " demo/ " + rest, line + "\n" + line, number + " demo/s1\n" + line}[rng.IntN(6)] + "\n"
	return strings.Join(lines, "")
}

// TestNoAddressIsGivenTwice runs random schedules of two leaders, of which the wrong one
// may act for a while, with imports that come and go, restarts, and a lost ledger; and
// compares what imports have with what they had when they came.
func TestNoAddressIsGivenTwice(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 7))
		ranges := Ranges{prefix("240.240.0.0/16"), prefix("2001:2::/48")}
		if seed%3 == 1 { // almost full
			ranges = Ranges{V4: prefix("10.9.8.0/28")}
		}
		s := &store{imports: map[Name]stored{}}
		leaders := []*leader{{ranges: ranges}, {ranges: ranges}}
		now := time.Unix(1_800_000_000, 0)
		leaders[0].read(s, now)
		leaders[1].read(s, now)
		current := 0
		had := map[Name]string{}
		lost := map[netip.Addr]time.Time{} // since when addresses are given back
		for step := range 400 {
			n := Name{"demo", fmt.Sprint("s", rng.IntN(20))}
			l := leaders[current]
			if rng.IntN(10) == 0 {
				l = leaders[1-current] // it does not know yet that it leads no more
			}
			now = now.Add(time.Duration(rng.IntN(60)) * time.Second)
			before := map[Name]stored{}
			for k, v := range s.imports {
				before[k] = v
			}
			switch op := rng.IntN(20); {
			case op < 10:
				l.assign(s, n, now)
			case op < 15:
				l.release(s, n, now)
			case op < 18:
				current = 1 - current
				leaders[current].read(s, now)
			case op == 18:
				*l = leader{ranges: ranges}
				l.read(s, now)
			case op == 19 && rng.IntN(3) == 0: // somebody writes into the ledger what cannot be read
				s.text = damage(rng, s.text)
				s.version++
			default: // somebody else's word on the ledger is none: it is read again
				l.version--
			}
			seen := map[netip.Addr]Name{}
			for k, i := range s.imports {
				if len(i.addresses) == 0 {
					t.Fatalf("seed %d, step %d: import %s has no address", seed, step, k)
				}
				for _, a := range i.addresses {
					if other, twice := seen[a]; twice {
						t.Fatalf("seed %d, step %d: %s is of %s and of %s", seed, step, a, k, other)
					}
					seen[a] = k
					if !ranges.Contains(a) {
						t.Fatalf("seed %d, step %d: %s is out of range", seed, step, a)
					}
					if at, was := lost[a]; was && fmt.Sprint(i.addresses) != had[k] && now.Sub(at) < Quarantine {
						t.Fatalf("seed %d, step %d: %s was given back %v ago and is of %s now", seed, step, a, now.Sub(at), k)
					}
				}
				if _, lived := before[k]; lived && had[k] != fmt.Sprint(i.addresses) {
					t.Fatalf("seed %d, step %d: %s had %s and has %s now", seed, step, k, had[k], i.addresses)
				}
				had[k] = fmt.Sprint(i.addresses)
			}
			for k, i := range before {
				if _, lives := s.imports[k]; !lives {
					for _, a := range i.addresses {
						lost[a] = now
					}
				}
			}
			for a := range seen {
				delete(lost, a)
			}
		}
	}
}

var east = []string{"east"}

func TestALedgerIsReadAsItWasWritten(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(DefaultRanges())
	for i := range 500 {
		l.Assign(Name{"demo", fmt.Sprint("s", i)}, []string{fmt.Sprint("network-", i%5)}, now)
		if i%7 == 0 {
			l.Release(Name{"demo", fmt.Sprint("s", i/2)}, now)
		}
	}
	l.lost[7], l.blind = now.Unix(), now.Unix()
	again, odd := Parse(DefaultRanges(), l.String(), now)
	if len(odd) > 0 || again.String() != l.String() || again.size != l.size || !maps.Equal(again.used, l.used) {
		t.Fatalf("read again: %v, %d bytes; want %d", odd, again.size, l.size)
	}
	if len(l.String()) > l.size+100 {
		t.Errorf("%d bytes of text; counted are %d", len(l.String()), l.size)
	}
	before, odd := Parse(DefaultRanges(), "1 demo/a\n2 demo/b 1800000000\n", now) // without networks, as it was
	if len(odd) > 0 || len(before.Names()) != 1 || before.UsedBy("") != 2 {
		t.Errorf("a ledger without networks: %v, %v", before.Names(), odd)
	}
}

// What cannot be read is left out, what can is kept, and no address that somebody may have
// is given to another one before its quarantine is over.
func TestLinesThatCannotBeReadTakeNothingFromOthers(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := Ranges{V4: prefix("10.9.8.0/28")}
	for text, want := range map[string]struct {
		odd   int
		names string
		held  []uint32 // numbers that nobody gets
		blind bool     // nobody gets any
	}{
		"x demo/a\n2 demo/b\n":                      {1, "[demo/b]", nil, true},
		"3 demo\n2 demo/b @east\n":                  {1, "[demo/b]", []uint32{3}, false},
		"1 demo/a\n1 demo/b\n2 demo/c\n":            {2, "[demo/c]", []uint32{1}, false},
		"1 demo/a\n2 demo/a\n3 demo/c\n":            {2, "[demo/c]", []uint32{1, 2}, false},
		"1 demo/a x\n2 demo/b @east 1799999999 y\n": {2, "[]", []uint32{1, 2}, false},
		"1\n\n \n2 demo/b\n":                        {1, "[demo/b]", []uint32{1}, false},
		"1 /a\n":                                    {1, "[]", []uint32{1}, false},
		"1 a/b/c\n":                                 {1, "[]", []uint32{1}, false},
		"4294967296 a/b\n":                          {1, "[]", nil, true},
	} {
		l, odd := Parse(r, text, now)
		if len(odd) != want.odd || fmt.Sprint(l.Names()) != want.names {
			t.Errorf("%q: %v are in it, and odd are %v; want %s and %d", text, l.Names(), odd, want.names, want.odd)
		}
		l, _ = Parse(r, l.String(), now) // as the next leader reads it
		given := func(at time.Time) (out []uint32) {
			for i := range 14 {
				n := Name{"demo", fmt.Sprint("new", i)}
				if _, why := l.Assign(n, []string{fmt.Sprint("network-", i)}, at); why == None {
					out = append(out, l.entries[n].number)
				}
			}
			return out
		}
		early := given(now.Add(Quarantine - time.Second))
		if want.blind != (len(early) == 0) || slices.ContainsFunc(early, func(n uint32) bool { return slices.Contains(want.held, n) }) {
			t.Errorf("%q: in the quarantine others got %v; want none of %v, and none at all: %v", text, early, want.held, want.blind)
		}
		if late := given(now.Add(Quarantine)); len(late) < 10 {
			t.Errorf("%q: after the quarantine others got %v", text, late)
		}
	}
	l, _ := Parse(r, "1 demo/a\n1 demo/b\nx\n", now)
	if !l.Adopt(Name{"demo", "b"}, []string{"east"}, []netip.Addr{netip.MustParseAddr("10.9.8.1")}) || l.Adopt(Name{"demo", "a"}, []string{"east"}, []netip.Addr{netip.MustParseAddr("10.9.8.1")}) {
		t.Error("who uses the address does not keep it, or two do")
	}
}

// One network that exports all that it can leaves room for the others, those too that come
// later; and by giving back and taking again it gets no more.
func TestANetworkGetsNoMoreThanItsShare(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(DefaultRanges())
	fill := func(network, of string, most int) (n int) {
		long := strings.Repeat("n", 50)
		for ; n < most; n++ {
			if _, why := l.Assign(Name{of + long, fmt.Sprint(long, n)}, []string{network}, now); why != None {
				if why != Share {
					t.Fatalf("%s gets no more after %d: %v; want that it has its share", network, n, why)
				}
				return n
			}
		}
		return n
	}
	greedy := fill("greedy", "a", 1<<20)
	if u := l.used["greedy"].bytes; u > MaxText*share/(share+1)+200 {
		t.Errorf("one network has %d bytes of %d", u, MaxText)
	}
	for _, n := range l.Names()[:greedy/2] {
		l.Release(n, now)
	}
	if n := fill("greedy", "b", 1<<20); n > 0 {
		t.Errorf("it has given back, and gets %d more within the quarantine", n)
	}
	for i := range 3 {
		if n := fill(fmt.Sprint("modest-", i), "c", 200); n != 200 {
			t.Errorf("network %d gets %d addresses beside it; want 200", i, n)
		}
	}
	if used, of := l.Used(); used >= of || len(l.String()) > MaxText {
		t.Errorf("%d of %d numbers, %d bytes", used, of, len(l.String()))
	}
	// What two export counts at the one that has less.
	if _, why := l.Assign(Name{"demo", "both"}, []string{"greedy", "modest-0"}, now); why != None || l.entries[Name{"demo", "both"}].network != "modest-0" {
		t.Errorf("what a modest network exports too gets no address: %v", why)
	}
	if l.Assign(Name{"demo", "both"}, []string{"greedy"}, now); l.entries[Name{"demo", "both"}].network != "greedy" || l.Addresses(Name{"demo", "both"}) == nil {
		t.Error("what it exports alone now does not count as its own, or has lost its address")
	}
	// In numbers as well, where names are short.
	l = New(Ranges{V4: prefix("10.9.0.0/20")})
	if n := fill("greedy", "a", 1<<20); n > l.usable*share/(share+1)+1 || n < l.usable/2 {
		t.Errorf("one network has %d of %d numbers", n, l.usable)
	}
}

func TestAFullRangeGivesNothingAndTakesBack(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(Ranges{V4: prefix("10.9.8.0/28")})
	var names []Name
	for i := range 200 {
		n := Name{"demo", fmt.Sprint("s", i)}
		if _, why := l.Assign(n, []string{fmt.Sprint("network-", i)}, now); why == None {
			names = append(names, n)
		} else if why != Exhausted {
			t.Fatalf("%s: %v; want that no number is free", n, why)
		}
	}
	if len(names) != 14 {
		t.Fatalf("%d services have an address of a /28; want 14", len(names))
	}
	l.Release(names[3], now)
	if _, why := l.Assign(Name{"demo", "late"}, east, now.Add(Quarantine-time.Second)); why == None {
		t.Error("an address was given to another service within its quarantine")
	}
	if _, why := l.Assign(Name{"demo", "late"}, east, now.Add(Quarantine)); why != None {
		t.Errorf("no address after the quarantine: %v", why)
	}
}

func TestAServiceThatReturnsHasItsAddress(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(DefaultRanges())
	n := Name{"demo", "web"}
	l.Assign(n, east, now)
	had := l.Addresses(n)
	l.Release(n, now)
	if got := l.Addresses(n); got != nil {
		t.Errorf("what was given back is %v", got)
	}
	l.Assign(n, east, now.Add(time.Minute))
	if got := l.Addresses(n); !slices.Equal(got, had) || len(got) != 2 {
		t.Errorf("it had %v and has %v", had, got)
	}
}

func TestALostLedgerIsMadeOfWhatIsInUse(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := DefaultRanges()
	l := New(r)
	for i := range 200 {
		l.Assign(Name{"demo", fmt.Sprint("s", i)}, east, now)
	}
	again := New(r)
	for _, n := range l.Names() {
		if !again.Adopt(n, []string{"east"}, l.Addresses(n)) {
			t.Fatalf("%s with %v is not taken", n, l.Addresses(n))
		}
	}
	if again.String() != l.String() {
		t.Error("what is in use makes another ledger")
	}
	for _, odd := range [][]netip.Addr{nil, {netip.MustParseAddr("10.0.0.1")}, {netip.MustParseAddr("240.240.0.0")}, {netip.MustParseAddr("240.240.1.1"), netip.MustParseAddr("2001:2::102")}} {
		if again.Adopt(Name{"demo", "odd"}, []string{"east"}, odd) {
			t.Errorf("%v is taken", odd)
		}
	}
}

func TestUsableNumbersAreCounted(t *testing.T) {
	for bits := 12; bits <= 28; bits++ {
		r := Ranges{V4: netip.PrefixFrom(netip.MustParseAddr("10.16.0.0"), bits)}
		want := 0
		for n := range r.size() {
			if r.has(n) {
				want++
			}
		}
		if got := r.usable(); got != want {
			t.Errorf("of a /%d %d numbers can be used; want %d", bits, got, want)
		}
	}
}

func TestRangesThatCannotBeAreNamed(t *testing.T) {
	for text, r := range map[string]Ranges{
		"vips.ipv4": {V4: netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 16)},
		"vips.ipv6": {V6: prefix("10.0.0.0/8")},
		"vips":      {},
	} {
		got := ""
		r.Check(func(field, _ string, _ ...any) { got = field })
		if got != text {
			t.Errorf("%v: %q is wrong; want %q", r, got, text)
		}
	}
	DefaultRanges().Check(func(field, format string, args ...any) { t.Errorf("%s: "+format, append([]any{field}, args...)...) })
	if _, over := DefaultRanges().Overlaps(prefix("240.0.0.0/4")); !over {
		t.Error("240.0.0.0/4 overlaps nothing")
	}
}
