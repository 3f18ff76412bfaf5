package admission

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// model is the obvious slow twin: lists of what is held, counted anew each time.
type model struct {
	cfg      Config
	sessions []*heldSession
	streams  []*heldStream
	opened   map[string][]time.Time // admitted streams by account, for the rate
}

type heldSession struct {
	c Client
	s *Session
}

type heldStream struct {
	of   *heldSession
	st   *Stream
	n    int
	shed bool
}

var names = map[Client][]string{} // of the accounts of a client

func accounts(c Client) []string {
	if n := names[c]; n != nil {
		return n
	}
	names[c] = []string{"i " + c.Identity}
	if c.Address.IsValid() {
		names[c] = append(names[c], "a "+AddressKey(c.Address).String())
	}
	return names[c]
}

func (m *model) limits(account string) (Scope, Limits) {
	if account[0] == 'i' {
		return ByIdentity, Limits(m.cfg.Identity)
	}
	return ByAddress, Limits(m.cfg.Address)
}

func has(c Client, account string) bool { return slices.Contains(accounts(c), account) }

func (m *model) count(account string) (sessions, streams int, unread int64) {
	for _, s := range m.sessions {
		if has(s.c, account) {
			sessions++
		}
	}
	for _, s := range m.streams {
		if has(s.of.c, account) {
			streams++
			unread += int64(s.n)
		}
	}
	return sessions, streams, unread
}

// refusesSession and refusesStream are what the table must answer; rate and unread
// bytes are checked by bounds of their own.
func (m *model) refusesSession(c Client) *Refusal {
	for _, a := range accounts(c) {
		scope, l := m.limits(a)
		if n, _, _ := m.count(a); l.Sessions > 0 && n >= l.Sessions {
			return &Refusal{scope, Sessions, int64(l.Sessions)}
		}
	}
	return nil
}

func (m *model) full(c Client) bool {
	for _, a := range accounts(c) {
		_, l := m.limits(a)
		if _, n, _ := m.count(a); l.Streams > 0 && n >= l.Streams {
			return true
		}
	}
	return false
}

// checkRate: within any second up to now no account was given more than twice what
// a second may bring: the burst, and what came back meanwhile.
func (m *model) checkRate(t *testing.T, c Client, now time.Time) {
	t.Helper()
	for _, a := range accounts(c) {
		m.opened[a] = append(m.opened[a], now)
		_, l := m.limits(a)
		n := 0
		for _, at := range m.opened[a] {
			if now.Sub(at) < time.Second {
				n++
			}
		}
		if l.StreamsPerSecond > 0 && n > 2*l.StreamsPerSecond {
			t.Fatalf("%s: %d streams within a second, bound %d", a, n, l.StreamsPerSecond)
		}
	}
}

func (m *model) check(t *testing.T, table *Table) {
	t.Helper()
	if c := table.Counts(); c.Sessions != len(m.sessions) || c.Streams != len(m.streams) {
		t.Fatalf("the table counts %+v, held are %d sessions and %d streams", c, len(m.sessions), len(m.streams))
	}
	table.mu.Lock()
	defer table.mu.Unlock()
	for k, a := range table.accounts {
		name := "i " + k.identity
		if a.scope == ByAddress {
			name = "a " + k.address.String()
		}
		sessions, streams, _ := m.count(name)
		if a.sessions != sessions || a.streams != streams || a.live != nil && len(a.live) != streams || a.spent < 0 {
			t.Fatalf("%s: the table holds %d sessions and %d streams (%d live, %v spent), the model %d and %d", name, a.sessions, a.streams, len(a.live), a.spent, sessions, streams)
		}
		l := a.limits
		if l.Sessions > 0 && a.sessions > l.Sessions || l.Streams > 0 && a.streams > l.Streams {
			t.Fatalf("%s: %d sessions and %d streams are above %+v", name, a.sessions, a.streams, l)
		}
	}
}

// perSession is what a session of the protocol that is bounded here can hold.
var perSession = hbone.DefaultConfig().MaxUnread()

// room is how many more bytes s can have unread.
func (m *model) room(s *heldSession) int64 {
	left := perSession
	for _, h := range m.streams {
		if h.of == s {
			left -= int64(h.n)
		}
	}
	return left
}

func randomLimits(rng *rand.Rand) Limits {
	return Limits{Sessions: rng.IntN(6), Streams: rng.IntN(20), StreamsPerSecond: rng.IntN(50), UnreadBytes: int64(rng.IntN(3)) * 32 << 20}
}

// Random clients come, hold and go; after every step the table agrees with the
// model, and when all are gone it is empty.
func TestTheTableAgreesWithASlowModel(t *testing.T) {
	clients := []Client{{Identity: "a"}}
	for i := range 6 {
		clients = append(clients, Client{fmt.Sprint(i % 3), netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", i%4))})
	}
	clients = append(clients, Client{"six", netip.MustParseAddr("2001:db8::1")}, Client{"six", netip.MustParseAddr("2001:db8::ffff:2")})
	for seed := range uint64(100) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { modelRun(t, rand.New(rand.NewPCG(seed, 1)), clients) })
	}
}

func modelRun(t *testing.T, rng *rand.Rand, clients []Client) {
	m := &model{cfg: Config{Identity: IdentityLimits(randomLimits(rng)), Address: AddressLimits(randomLimits(rng))}, opened: map[string][]time.Time{}}
	table := New(m.cfg, perSession)
	now := time.Unix(1e9, 0)
	for range 400 {
		switch rng.IntN(8) {
		case 0, 1:
			c := clients[rng.IntN(len(clients))]
			want := m.refusesSession(c)
			s, err := table.Session(c, now)
			var got *Refusal
			if errors.As(err, &got) != (want != nil) || want != nil && *got != *want {
				t.Fatalf("session of %v: %v, want %v", c, err, want)
			}
			if err == nil {
				m.sessions = append(m.sessions, &heldSession{c, s})
			}
		case 2, 3, 4:
			if len(m.sessions) == 0 {
				continue
			}
			h := &heldStream{of: m.sessions[rng.IntN(len(m.sessions))]}
			h.n = rng.IntN(int(min(32<<20, m.room(h.of))) + 1)
			var err error
			h.st, err = h.of.s.Stream(now, func() int { return h.n }, func() {
				if h.shed {
					t.Fatal("shed twice")
				}
				h.shed, h.n = true, 0
			})
			var r *Refusal
			switch errors.As(err, &r); {
			case err == nil && m.full(h.of.c):
				t.Fatal("admitted above the bound")
			case err == nil:
				m.streams = append(m.streams, h)
				m.checkRate(t, h.of.c, now)
			case r.Limit == Streams && !m.full(h.of.c):
				t.Fatalf("refused with %v, with room", r)
			}
		case 5:
			if i := len(m.streams); i > 0 {
				i = rng.IntN(i)
				m.streams[i].st.Release()
				m.streams = append(m.streams[:i], m.streams[i+1:]...)
			}
		case 6:
			if i := len(m.sessions); i > 0 {
				i = rng.IntN(i)
				m.end(m.sessions[i])
				m.sessions = append(m.sessions[:i], m.sessions[i+1:]...)
			}
		case 7:
			now = now.Add(time.Duration(rng.IntN(1000)) * time.Millisecond)
			table.Sweep(now)
			m.checkUnread(t)
		}
		m.check(t, table)
	}
	for _, s := range m.sessions {
		m.end(s)
	}
	m.sessions = nil
	m.check(t, table)
	table.Sweep(now.Add(2 * time.Second))
	if c := table.Counts(); c.Accounts != 0 {
		t.Fatalf("%d accounts are kept for nobody", c.Accounts)
	}
}

// end releases what a session holds, and the session.
func (m *model) end(s *heldSession) {
	kept := m.streams[:0]
	for _, h := range m.streams {
		if h.of == s {
			h.st.Release()
		} else {
			kept = append(kept, h)
		}
	}
	m.streams = kept
	s.s.Release()
}

// checkUnread: after a Sweep no account is above its bound.
func (m *model) checkUnread(t *testing.T) {
	t.Helper()
	for _, s := range m.sessions {
		for _, a := range accounts(s.c) {
			_, l := m.limits(a)
			_, _, unread := m.count(a)
			if l.UnreadBytes > 0 && unread > l.UnreadBytes {
				t.Fatalf("%s: %d bytes unread after a sweep, bound %d", a, unread, l.UnreadBytes)
			}
		}
	}
}

func TestAReleasedSessionTakesNoStream(t *testing.T) {
	table, now := New(DefaultConfig(), perSession), time.Unix(1e9, 0)
	s, _ := table.Session(Client{Identity: "a"}, now)
	s.Release()
	table.Sweep(now)
	if _, err := s.Stream(now, func() int { return 0 }, func() {}); !errors.Is(err, ErrSessionOver) {
		t.Errorf("got %v, want ErrSessionOver", err)
	}
}

func TestReleasingTwiceIsABug(t *testing.T) {
	table := New(DefaultConfig(), perSession)
	s, _ := table.Session(Client{Identity: "a"}, time.Now())
	st, _ := s.Stream(time.Now(), func() int { return 0 }, func() {})
	st.Release()
	for name, again := range map[string]func(){"stream": st.Release, "session": func() { s.Release(); s.Release() }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a %s was released twice, and nobody noticed", name)
				}
			}()
			again()
		}()
	}
}

// A session that holds all that the protocol lets it is above every smaller bound:
// one session and a bound just below, and the defaults with as many sessions as
// exceed them.
func TestNoAccountStaysAboveItsUnreadBytes(t *testing.T) {
	just := DefaultConfig()
	just.Identity.UnreadBytes = perSession - 1
	for name, c := range map[string]struct {
		cfg      Config
		sessions int
		client   func(i int) Client
	}{
		"one session":  {just, 1, func(int) Client { return Client{Identity: "a"} }},
		"one identity": {DefaultConfig(), 5, func(int) Client { return Client{Identity: "a"} }},
		"one address": {DefaultConfig(), 9, func(i int) Client {
			return Client{fmt.Sprint(i), netip.MustParseAddr("10.0.0.1")}
		}},
	} {
		table, now, shed := New(c.cfg, perSession), time.Unix(1e9, 0), 0
		for i := range c.sessions {
			s, err := table.Session(c.client(i), now)
			if err != nil {
				t.Fatal(err)
			}
			for range 16 {
				if _, err := s.Stream(now, func() int { return int(perSession / 16) }, func() { shed++ }); err != nil {
					t.Fatal(err)
				}
			}
		}
		if table.Sweep(now); shed == 0 {
			t.Errorf("%s: %d sessions hold %d bytes each, and nothing was shed", name, c.sessions, perSession)
		}
	}
}

// While unread bytes are above the bound nothing new is admitted; what is shed is
// what holds most.
func TestTheGreediestStreamsAreShed(t *testing.T) {
	table := New(Config{Identity: IdentityLimits{UnreadBytes: 20 << 20}}, perSession)
	now := time.Unix(1e9, 0)
	a, _ := table.Session(Client{Identity: "a"}, now)
	b, _ := table.Session(Client{Identity: "a"}, now)
	var shed []int
	for i, n := range []int{1 << 20, 15 << 20, 2 << 20, 8 << 20} {
		s := a
		if i%2 == 1 {
			s = b
		}
		if _, err := s.Stream(now, func() int { return n }, func() { shed = append(shed, i); n = 0 }); err != nil {
			t.Fatal(err)
		}
	}
	if got := table.Sweep(now); got != (Shed{ByIdentity: 1}) || len(shed) != 1 || shed[0] != 1 {
		t.Errorf("shed %v %v, want the stream with 15 MiB", got, shed)
	}
	var r *Refusal
	if _, err := a.Stream(now, nil, nil); !errors.As(err, &r) || r.Limit != UnreadBytes {
		t.Errorf("a new stream: %v, want it refused for unread bytes", err)
	}
	table.Sweep(now)
	if _, err := a.Stream(now, func() int { return 0 }, nil); err != nil {
		t.Errorf("a new stream when all is well again: %v", err)
	}
}
