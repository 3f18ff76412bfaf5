package vip

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
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

func (l *leader) read(s *store) {
	l.ledger, l.version = nil, s.version
	l.ledger, _ = Parse(l.ranges, s.text)
	l.seen = map[Name]int{}
	for n, i := range s.imports {
		l.seen[n] = i.version
		l.ledger.Adopt(n, i.addresses)
	}
}

// assign makes import n as a leader does: the ledger first, and then the import, each of
// which the version that it knows must be that of.
func (l *leader) assign(s *store, n Name, now time.Time) {
	changed, ok := l.ledger.Assign(n, now)
	if !ok {
		return
	}
	if _, exists := s.imports[n]; changed || !exists { // also if the ledger stays as it is
		if l.version != s.version {
			l.read(s)
			return // again later
		}
		s.text = l.ledger.String()
		s.version++
		l.version = s.version
	}
	if at, exists := s.imports[n]; exists && at.version != l.seen[n] {
		l.read(s)
		return
	}
	i := stored{l.ledger.Addresses(n), s.imports[n].version + 1}
	s.imports[n], l.seen[n] = i, i.version
}

func (l *leader) release(s *store, n Name, now time.Time) {
	if at, exists := s.imports[n]; exists {
		if at.version != l.seen[n] {
			l.read(s)
			return
		}
		delete(s.imports, n)
	}
	if !l.ledger.Release(n, now) {
		return
	}
	if l.version != s.version {
		l.read(s)
		return
	}
	s.text = l.ledger.String()
	s.version++
	l.version = s.version
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
		leaders[0].read(s)
		leaders[1].read(s)
		current := 0
		now := time.Unix(1_800_000_000, 0)
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
				leaders[current].read(s)
			case op == 18:
				*l = leader{ranges: ranges}
				l.read(s)
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

func TestALedgerIsReadAsItWasWritten(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(DefaultRanges())
	for i := range 500 {
		l.Assign(Name{"demo", fmt.Sprint("s", i)}, now)
		if i%7 == 0 {
			l.Release(Name{"demo", fmt.Sprint("s", i/2)}, now)
		}
	}
	again, err := Parse(DefaultRanges(), l.String())
	if err != nil || again.String() != l.String() || again.size != l.size {
		t.Fatalf("read again: %v, %d bytes; want %d", err, again.size, l.size)
	}
	if len(l.String()) > l.size {
		t.Errorf("%d bytes of text; counted are %d", len(l.String()), l.size)
	}
	for _, text := range []string{"x demo/a\n", "1 demo\n", "1 demo/a\n1 demo/b\n", "1 demo/a\n2 demo/a\n", "1 demo/a x\n", "1\n", "1 /a\n", "1 a/b/c\n"} {
		if _, err := Parse(DefaultRanges(), text); err == nil {
			t.Errorf("%q is read without an error", text)
		}
	}
}

func TestAFullRangeGivesNothingAndTakesBack(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(Ranges{V4: prefix("10.9.8.0/28")})
	var names []Name
	for i := range 20 {
		n := Name{"demo", fmt.Sprint("s", i)}
		if _, ok := l.Assign(n, now); ok {
			names = append(names, n)
		}
	}
	if len(names) != 14 {
		t.Fatalf("%d services have an address of a /28; want 14", len(names))
	}
	l.Release(names[3], now)
	if _, ok := l.Assign(Name{"demo", "late"}, now.Add(Quarantine-time.Second)); ok {
		t.Error("an address was given to another service within its quarantine")
	}
	if _, ok := l.Assign(Name{"demo", "late"}, now.Add(Quarantine)); !ok {
		t.Error("no address after the quarantine")
	}
}

func TestAServiceThatReturnsHasItsAddress(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	l := New(DefaultRanges())
	n := Name{"demo", "web"}
	l.Assign(n, now)
	had := l.Addresses(n)
	l.Release(n, now)
	if got := l.Addresses(n); got != nil {
		t.Errorf("what was given back is %v", got)
	}
	l.Assign(n, now.Add(time.Minute))
	if got := l.Addresses(n); !slices.Equal(got, had) || len(got) != 2 {
		t.Errorf("it had %v and has %v", had, got)
	}
}

func TestALostLedgerIsMadeOfWhatIsInUse(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	r := DefaultRanges()
	l := New(r)
	for i := range 200 {
		l.Assign(Name{"demo", fmt.Sprint("s", i)}, now)
	}
	again := New(r)
	for _, n := range l.Names() {
		if !again.Adopt(n, l.Addresses(n)) {
			t.Fatalf("%s with %v is not taken", n, l.Addresses(n))
		}
	}
	if again.String() != l.String() {
		t.Error("what is in use makes another ledger")
	}
	for _, odd := range [][]netip.Addr{nil, {netip.MustParseAddr("10.0.0.1")}, {netip.MustParseAddr("240.240.0.0")}, {netip.MustParseAddr("240.240.1.1"), netip.MustParseAddr("2001:2::102")}} {
		if again.Adopt(Name{"demo", "odd"}, odd) {
			t.Errorf("%v is taken", odd)
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
