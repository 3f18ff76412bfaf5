// Package admission bounds what one client may hold of a server: sessions, streams,
// new streams per second and unread bytes, by the identity that it has proved and by
// the address that it comes from. It only keeps account: it starts nothing, knows no
// protocol, and is told the time.
//
// It promises: whatever was admitted counts until it is released, once, and an
// account that holds nothing and owes nothing is forgotten by the next Sweep.
package admission

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Scope is whose bound was reached.
type Scope string

// Limit is which bound was reached.
type Limit string

const (
	ByIdentity Scope = "identity"
	ByAddress  Scope = "address"

	Sessions         Limit = "sessions"
	Streams          Limit = "streams"
	StreamsPerSecond Limit = "streams_per_second"
	UnreadBytes      Limit = "unread_bytes"
)

// Scopes and LimitNames are the closed lists.
var (
	Scopes     = []Scope{ByIdentity, ByAddress}
	LimitNames = []Limit{Sessions, Streams, StreamsPerSecond, UnreadBytes}
)

// Refusal says which bound a client has reached.
type Refusal struct {
	Scope Scope
	Limit Limit
	Bound int64
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("the client has reached limits.%s.%s, which is %d", r.Scope, r.Limit.key(), r.Bound)
}

// Client is whom work is done for. Without an address (zero) only the identity
// counts: for clients behind something that we trust to carry many.
type Client struct {
	Identity string
	Address  netip.Addr
}

// Table holds the accounts. Make one with New. Safe for concurrent use.
type Table struct {
	cfg        Config
	perSession int64 // most unread bytes of one; spares most accounts a look in Sweep

	mu       sync.Mutex
	accounts map[key]*account
}

// key is an identity or a range of addresses; the other one is zero.
type key struct {
	identity string
	address  netip.Prefix
}

// account is what one key holds. Guarded by the table's mu.
type account struct {
	scope    Scope
	limits   Limits
	sessions int
	streams  int
	over     bool    // unread bytes were above the bound at the last Sweep
	spent    float64 // streams of the last second that are not yet forgiven
	at       time.Time
	live     map[*Stream]struct{} // nil unless unread bytes are bounded
}

// New returns an empty table. perSession is the most bytes that the protocol lets one
// session have unread: accounts whose sessions cannot reach their bound together are
// not looked at.
func New(cfg Config, perSession int64) *Table {
	return &Table{cfg: cfg, perSession: perSession, accounts: map[key]*account{}}
}

// AddressKey is what counts as one address: an IPv4 address, or the /64 of an IPv6
// one, all of which a single host may use.
func AddressKey(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// Session is one admitted session, until Release.
type Session struct {
	t        *Table
	accounts []*account // of the identity, and of the address if that counts
	released bool
}

// Session admits a session of c, or returns a *Refusal.
func (t *Table) Session(c Client, now time.Time) (*Session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &Session{t: t, accounts: []*account{t.account(key{identity: c.Identity}, ByIdentity, Limits(t.cfg.Identity), now)}}
	if c.Address.IsValid() {
		s.accounts = append(s.accounts, t.account(key{address: AddressKey(c.Address)}, ByAddress, Limits(t.cfg.Address), now))
	}
	for _, a := range s.accounts {
		if reached(a.sessions, a.limits.Sessions) {
			return nil, &Refusal{a.scope, Sessions, int64(a.limits.Sessions)}
		}
	}
	for _, a := range s.accounts {
		a.sessions++
	}
	return s, nil
}

func (t *Table) account(k key, scope Scope, l Limits, now time.Time) *account {
	a := t.accounts[k]
	if a == nil {
		a = &account{scope: scope, limits: l, at: now}
		if l.UnreadBytes > 0 {
			a.live = map[*Stream]struct{}{}
		}
		t.accounts[k] = a
	}
	return a
}

// reached reports whether n is at bound; zero is no bound.
func reached(n, bound int) bool { return bound > 0 && n >= bound }

// Release gives the session back. Calling it twice is a bug of the caller's.
func (s *Session) Release() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	once(&s.released, "session")
	for _, a := range s.accounts {
		a.sessions--
	}
}

func once(released *bool, what string) {
	if *released {
		panic("admission: " + what + " released twice")
	}
	*released = true
}

// Stream is one admitted stream, until Release.
type Stream struct {
	s        *Session
	unread   func() int
	shed     func()
	claimed  bool // shed was called
	released bool
}

// ErrSessionOver is what Stream returns on a session that was released: its accounts
// may be forgotten already, and nobody would count the stream.
var ErrSessionOver = errors.New("the session is over")

// Stream admits a stream on the session, or returns a *Refusal or ErrSessionOver. unread tells how
// many received bytes of it nobody has read yet; shed ends it, because its client
// holds too many of these. Both are called without any lock and must not wait; shed
// is called at most once, unread perhaps a moment after Release.
func (s *Session) Stream(now time.Time, unread func() int, shed func()) (*Stream, error) {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	if s.released {
		return nil, ErrSessionOver
	}
	for _, a := range s.accounts {
		if r := a.refuseStream(now); r != nil {
			return nil, r
		}
	}
	st := &Stream{s: s, unread: unread, shed: shed}
	for _, a := range s.accounts {
		a.streams++
		a.spent++
		if a.live != nil {
			a.live[st] = struct{}{}
		}
	}
	return st, nil
}

func (a *account) refuseStream(now time.Time) error {
	a.forgive(now)
	switch l := a.limits; {
	case reached(a.streams, l.Streams):
		return &Refusal{a.scope, Streams, int64(l.Streams)}
	case l.StreamsPerSecond > 0 && a.spent+1 > float64(l.StreamsPerSecond):
		return &Refusal{a.scope, StreamsPerSecond, int64(l.StreamsPerSecond)}
	case a.over:
		return &Refusal{a.scope, UnreadBytes, l.UnreadBytes}
	}
	return nil
}

// forgive lets time pass: a second pays for as many streams as a second may bring,
// which is also the burst.
func (a *account) forgive(now time.Time) {
	if d := now.Sub(a.at); d > 0 {
		a.spent = max(0, a.spent-d.Seconds()*float64(a.limits.StreamsPerSecond))
		a.at = now
	}
	if a.limits.StreamsPerSecond == 0 {
		a.spent = 0
	}
}

// Release gives the stream back. Calling it twice is a bug of the caller's.
func (st *Stream) Release() {
	t := st.s.t
	t.mu.Lock()
	defer t.mu.Unlock()
	once(&st.released, "stream")
	for _, a := range st.s.accounts {
		a.streams--
		delete(a.live, st)
	}
}

// Counts is what a table holds.
type Counts struct {
	Accounts, Sessions, Streams int // the last two by identity
}

// Counts returns what is held now.
func (t *Table) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := Counts{Accounts: len(t.accounts)}
	for _, a := range t.accounts {
		if a.scope == ByIdentity {
			c.Sessions += a.sessions
			c.Streams += a.streams
		}
	}
	return c
}
