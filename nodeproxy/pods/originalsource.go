package pods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Values of capture.originalSource, ztunnel's.
const (
	SourceAuto  = "auto"
	SourceTrue  = "true"
	SourceFalse = "false"
)

// originalSource has the application of a captured pod see the address of its client: who has connected
// to the pod's port 15008. Safe for concurrent use.
type originalSource struct {
	c       *Set
	h       *Pod
	own     []netip.Addr // of the pod
	off     atomic.Bool
	said    atomic.Bool
	doubted sync.Mutex // held while it is tried again
}

// sources are the namespaces whose rules for original sources are in use: those of pods that are captured, and of
// those that are not any more and whose last connections drain.
type sources struct {
	mu   sync.Mutex
	uses map[podns.ID]*sourceUse
}

// sourceUse is that of one namespace, for as long as it has users.
type sourceUse struct {
	rules sync.Mutex // held while they are set or taken out; before sources.mu
	users int        // guarded by sources.mu
}

func (s *sources) use(id podns.ID) *sourceUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uses[id]
	if u == nil {
		u = &sourceUse{}
		s.uses[id] = u
	}
	u.users++
	return u
}

// used reports whether that of a namespace has users.
func (s *sources) used(id podns.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uses[id] != nil
}

// settle returns when who takes rules out has done so.
func (u *sourceUse) settle() {
	u.rules.Lock()
	defer u.rules.Unlock()
}

// end calls last if nobody else uses u, and before anybody else begins to.
func (s *sources) end(id podns.ID, u *sourceUse, last func()) {
	u.rules.Lock()
	defer u.rules.Unlock()
	s.mu.Lock()
	u.users--
	over := u.users == 0
	s.mu.Unlock()
	if over {
		last()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u.users == 0 { // still
		delete(s.uses, id)
	}
}

// openSource sets what h.source needs in the namespace. fresh: no node proxy has captured the
// pod before, and what cannot be used is taken out again.
func (c *Set) openSource(h *Pod, addresses []netip.Addr, fresh bool) error {
	h.use = c.sources.use(h.place.ns.ID())
	h.use.settle()
	if c.cfg.OriginalSource == SourceFalse {
		return nil
	}
	s := &originalSource{c: c, h: h, own: addresses}
	err := capture.Routed(h.place.ns, h.address) // first: rules that are taken out again cost more than those that stay
	routed := err == nil
	if routed {
		h.use.rules.Lock()
		err = s.set()
		h.use.rules.Unlock()
	}
	if err == nil {
		h.source = s
		return nil
	}
	if c.cfg.OriginalSource == SourceTrue {
		c.closeSource(h, fresh)
		return fmt.Errorf("capture.originalSource is true, and its application cannot see the addresses of clients (auto does without where that is so): %w", err)
	}
	if fresh && routed { // or there is nothing of it
		err = errors.Join(err, capture.RemoveSource(h.place.ns))
	}
	s.give(err)
	return nil
}

// closeSource takes out what openSource has set, and all other rules, if remove says so and nobody else needs them:
// another process may have captured the pod since.
func (c *Set) closeSource(h *Pod, remove bool) {
	c.sources.end(h.place.ns.ID(), h.use, func() {
		if !remove || h.emptied && c.takenOver(h) {
			return
		}
		// The table by which others see that there is something to take out goes last: this process may be ended now.
		if err := errors.Join(capture.RemoveSource(h.place.ns), capture.Remove(h.place.ns)); err != nil {
			c.p.Log.Error().Str("workload", h.uid).Err(err).Msg("rules are left in a pod that is captured no more")
		}
	})
}

// takenOver reports whether rules of somebody are in the pod of h, of whom h has left none.
func (c *Set) takenOver(h *Pod) bool {
	owner, there, err := capture.Owner(h.place.ns)
	if err != nil || !there {
		return false
	}
	none, err := capture.Hold(h.place.ns, capture.Rules{Owner: owner})
	return err == nil && !none
}

// set sets the rules, and sees whether they do what they are for.
func (s *originalSource) set() error {
	if err := capture.SetSource(s.h.place.ns, s.h.address.Is6()); err != nil {
		return err
	}
	return capture.TrySource(s.h.place.ns, s.h.address, s.h.ports)
}

// give says once that the application sees the pod's own address, and why.
func (s *originalSource) give(err error) {
	if !s.said.Swap(true) {
		s.c.p.Log.Info().Str("workload", s.h.uid).Err(err).Msg("the application of a captured pod sees the pod's own address as that of clients")
	}
}

// ToApplication returns how the application of a workload is dialed for a client. The connection
// comes from the client's address if that is possible, and from the pod's own otherwise, as without
// a valid client. A workload that is not captured is dialed as by Dialer.
func (c *Set) ToApplication(uid string, client netip.Addr, otherwise tcp.Dial) tcp.Dial {
	h := c.Get(uid)
	if h == nil {
		return c.Dialer(uid, 0, otherwise)
	}
	own := h.ApplicationDialer()
	if client.IsValid() && h.source.carries(client.Unmap()) {
		return h.source.dialer(client.Unmap(), own)
	}
	return own
}

// carries reports whether a connection within the pod may come from client: an address that the pod's
// network may carry, of the family of the pod's own, and neither one of the pod's nor a virtual one.
func (s *originalSource) carries(client netip.Addr) bool {
	if s == nil || s.off.Load() || client.BitLen() != s.h.address.BitLen() || client.Zone() != "" {
		return false
	}
	if !client.IsGlobalUnicast() || client.Is4() && client.As4()[0] == 0 || slices.Contains(s.own, client) {
		return false
	}
	s.c.mu.Lock()
	rules := s.h.rules
	s.c.mu.Unlock()
	return !s.c.cfg.holds(client) && !slices.Contains(rules.Addresses, client)
}

// lostWithin is how long an application that has not answered the client's address is asked from the pod's own:
// it takes no round trip, and who is slow has had its time.
const lostWithin = 250 * time.Millisecond

// dialer connects from the client's address. It uses own if that fails on this host, such
// as without a free port of that address.
func (s *originalSource) dialer(client netip.Addr, own tcp.Dial) tcp.Dial {
	from := dialFrom(s.h.place.ns, 0, capture.Source(client, s.h.ports))
	return func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		if addr.Addr().Unmap() != s.h.address {
			return own(ctx, addr, timeout)
		}
		began := time.Now()
		conn, err := from(ctx, addr, timeout)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil: // the client has gone, maybe elsewhere, for it took so long
			if time.Since(began) >= s.c.cfg.SlowConnect {
				s.c.p.Go(s.doubt)
			}
			return nil, err
		case localfault.Is(err) && !timedOut(err):
			s.give(err)
			return own(ctx, addr, timeout)
		case !timedOut(err):
			return nil, err
		}
		conn, again := own(ctx, addr, min(timeout, lostWithin))
		if again != nil {
			return nil, err
		}
		s.doubt()
		return conn, nil
	}
}

// timedOut reports whether err is that of a dial which nobody has answered.
func timedOut(err error) bool {
	var ne net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

// doubt sees whether answers still come back, when one has not: somebody in the pod may have taken
// rules out. It ends the use of original sources in the pod if they cannot be set again.
func (s *originalSource) doubt() {
	if !s.doubted.TryLock() {
		return // somebody else does
	}
	defer s.doubted.Unlock()
	if s.off.Load() || capture.TrySource(s.h.place.ns, s.h.address, s.h.ports) == nil {
		return
	}
	s.h.use.rules.Lock()
	defer s.h.use.rules.Unlock()
	if s.c.Get(s.h.uid) != s.h {
		return // it leaves, and so do the rules
	}
	if err := s.set(); podns.Lacking(err) || errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return // no descriptor or port is free now: the next lost connection tries again
	} else if err != nil {
		s.off.Store(true)
		s.give(err)
		return
	}
	s.c.p.Log.Info().Str("workload", s.h.uid).Msg("rules that have clients' addresses reach the application were gone, and are set again")
}
