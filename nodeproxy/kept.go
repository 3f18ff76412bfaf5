package nodeproxy

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warm"
	"github.com/isthmus-mesh/isthmus/nodeproxy/warmset"
)

// keptBy are the warm sets of one origin, as the picker asks for them.
type keptBy struct {
	keeper *warm.Keeper
	source origin
}

func (k keptBy) session(s picker.Share, id uint64) warm.Session {
	return warm.Session{Key: warm.Key{Source: k.source.id, From: k.source.from, Network: s.Network, Service: s.Service, Port: s.Port}, ID: id}
}

// Choose implements [picker.Kept].
func (k keptBy) Choose(s picker.Share, gateway string, fits func(warmset.Choice) bool) (warmset.Choice, bool) {
	return k.keeper.Choose(k.session(s, 0).Key, gateway, fits)
}

// keptKey is that of the session s, and of the others with the same endpoint that the
// pool opens when it is full.
func keptKey(s warm.Session) pool.Key {
	return pool.Key{Source: s.Source.String(), From: s.From, Address: s.Network + " " + authorityOf(s.Key), UID: strconv.FormatUint(s.ID, 16), Through: keptThrough}
}

// keptThrough is in the key of each session that a warm set keeps: the set sees to it
// that its gateway is one to use.
const keptThrough = "kept"

func authorityOf(k warm.Key) string { return k.Service + ":" + itoa(k.Port) }

func (p *Proxy) newKeeper(random func() float64, seed func() uint64) *warm.Keeper {
	t := p.cfg.Timeouts
	return warm.New(warm.Config{Open: p.openKept, Retire: func(s warm.Session) { p.pool.RetireKey(keptKey(s)) }, Share: p.warmShare,
		Silent: func(s warm.Session) bool { return p.pool.Silent(keptKey(s)) },
		Random: random, Seed: seed, Idle: t.Idle, Timeout: t.Dial + t.Handshake + t.Connect})
}

// warmShare is what is known now of the share that k is of.
func (p *Proxy) warmShare(k warm.Key) warmset.Share {
	snap := p.store.Current()
	svc := snap.Service(k.Service)
	if svc == nil || !snap.Reaches(svc, p.cfg.Network, k.Network) {
		return warmset.Share{}
	}
	share, ok := snap.Share(svc, k.Network)
	if _, has := svc.Port(k.Port); !ok || !has || !share.Offers(k.Port) || share.Capacity == 0 {
		return warmset.Share{}
	}
	s := p.view.Warm(picker.Share{Network: k.Network, Service: k.Service, Port: k.Port}, share.Gateways, int(share.Capacity), time.Now())
	s.Expect = share.Identities
	return s
}

// openKept opens s in the background.
func (p *Proxy) openKept(ctx context.Context, s warm.Session, r warmset.Request) (a warmset.Answer, gone bool, err error) {
	c := caller{snap: p.store.Current(), host: s.Service, app: netip.AddrPortFrom(netip.IPv4Unspecified(), 0), trace: header.NewTraceparent(crand.Reader)}
	for _, w := range c.snap.OnNode(p.cfg.Network, p.cfg.Node) {
		if w.Identity == s.Source && (s.From == "" || s.From == w.UID) {
			c.source = w
		}
	}
	v := via{authority: authorityOf(s.Key), pin: r.Pin, avoid: r.Avoid, session: s, dials: patientDials}
	for _, g := range c.snap.Gateways(s.Network) {
		if picker.Way(g) == r.Gateway {
			v.gateway = g
		}
	}
	svc := c.snap.Service(s.Service)
	if c.source == nil || v.gateway == nil || svc == nil {
		return a, false, errUndeclared
	}
	v.expect = c.snap.Identities(svc, s.Network)
	var in *hbone.Session
	started := time.Now()
	err = p.pool.Use(ctx, keptKey(s), p.dialKept(c, v, nil), func(inner *hbone.Session) error {
		in = inner
		return inner.AwaitSettings(ctx) // the pod has accepted our certificate
	})
	if err == nil {
		a = p.answerOf(in)
	} else {
		p.pool.RetireKey(keptKey(s))
		var f *failure
		if errors.As(err, &f) {
			gone = f.reason == string(header.ReasonPinnedGone)
			if p.excuse(f, started); ctx.Err() == nil {
				p.view.unopened(v.gateway, f, time.Now())
			}
		}
		p.log.Debug().Str("network", s.Network).Str("service", s.Service).Uint16("port", s.Port).Err(err).Msg("a session to be kept was not opened")
	}
	return a, gone, err
}

// dialKept returns how the pool opens one more session under v.session. All that are
// under one ID at one time are with one endpoint, if gateways name it: the first is dialed
// alone, those after it are pinned to whom it reached. dialled, unless nil, is set when it has asked a
// gateway itself.
func (p *Proxy) dialKept(c caller, v via, dialled *atomic.Bool) pool.Dial {
	return func(ctx context.Context) (*hbone.Session, error) {
		one := p.sameEndpoint(v.session)
		s, a, err := one.dial(ctx, func(first *warmset.Answer) (*hbone.Session, warmset.Answer, error) {
			if dialled != nil {
				dialled.Store(true)
			}
			return p.dialOne(ctx, c, v, first)
		})
		if err != nil {
			p.letGo(v.session, one)
			return nil, err
		}
		p.answers.Store(s, a)
		if !a.Unnamed {
			p.view.Reached(picker.Share{Network: v.session.Network, Service: v.session.Service, Port: v.session.Port}, a.Endpoint, v.gateway.Name)
		}
		go func() { // ends with s
			<-s.Done()
			p.answers.Delete(s)
			if last := p.letGo(v.session, one); last || !p.pool.Serves(keptKey(v.session)) {
				p.kept.Broken(v.session)
			}
		}()
		return s, nil
	}
}

// dialOne opens a session by v: with the endpoint of first and nobody else, unless first
// is nil.
func (p *Proxy) dialOne(ctx context.Context, c caller, v via, first *warmset.Answer) (*hbone.Session, warmset.Answer, error) {
	if first != nil {
		if !slices.Contains(v.expect, first.Identity) {
			return nil, warmset.Answer{}, notThatOne(v, first, first)
		}
		if !first.Unnamed {
			v.pin, v.avoid, v.expect = first.Endpoint, nil, []spiffeid.ID{first.Identity}
		}
	}
	s, by, err := p.openInner(ctx, c, v)
	if err != nil {
		return nil, warmset.Answer{}, err
	}
	a := warmset.Answer{Endpoint: by.endpoint, Weight: by.weight, Identity: s.Peer().ID, Gateway: picker.Way(v.gateway)}
	if a.Endpoint == 0 { // a gateway that names nobody
		a.Endpoint, a.Unnamed = mesh.EndpointID(v.session.ID), true
	}
	// Who is not named cannot be asked for: the next one may be of another identity, and
	// openDouble sees to it that no connection goes there that does not expect it.
	if first != nil && !first.Unnamed && (a.Endpoint != first.Endpoint || a.Identity != first.Identity) {
		s.Close(nil)
		return nil, a, notThatOne(v, first, &a)
	}
	return s, a, nil
}

// notThatOne is a session that may not be used for v, since it is with the endpoint of
// is: nobody's fault, and elsewhere may do.
func notThatOne(v via, want, is *warmset.Answer) *failure {
	f := &failure{at: atEndpoint, reason: reasonIdentity, err: fmt.Errorf("session %x by %s is with endpoint %s (%s), and endpoint %s (%s) answered; want one of %v: it is opened anew elsewhere",
		v.session.ID, picker.GatewayKey(v.gateway), want.Endpoint, want.Identity, is.Endpoint, is.Identity, v.expect)}
	if !is.Unnamed {
		f.endpoint = is.Endpoint
	}
	return f
}

// oneEndpoint is with whom the sessions under one ID are, as long as there is one, or a
// dial.
type oneEndpoint struct {
	users int // sessions and dials; guarded by Proxy.onesMu

	mu    sync.Mutex
	first *warmset.Answer
	err   error         // of the first dial
	ended chan struct{} // closed when that has; nil: there was none
}

func (p *Proxy) sameEndpoint(s warm.Session) *oneEndpoint {
	p.onesMu.Lock()
	defer p.onesMu.Unlock()
	one := p.ones[s]
	if one == nil {
		one = &oneEndpoint{}
		p.ones[s] = one
	}
	one.users++
	return one
}

// letGo reports whether it was the last.
func (p *Proxy) letGo(s warm.Session, one *oneEndpoint) (last bool) {
	p.onesMu.Lock()
	defer p.onesMu.Unlock()
	if one.users--; one.users > 0 {
		return false
	}
	delete(p.ones, s)
	return true
}

// dial has open dial once the endpoint is known, or to learn it. Who waits for that has
// its failure too.
func (o *oneEndpoint) dial(ctx context.Context, open func(first *warmset.Answer) (*hbone.Session, warmset.Answer, error)) (*hbone.Session, warmset.Answer, error) {
	o.mu.Lock()
	ended := o.ended
	if ended == nil {
		ended = make(chan struct{})
		o.ended = ended
		o.mu.Unlock()
		s, a, err := open(nil)
		o.mu.Lock()
		if o.err = err; err == nil {
			o.first = &a
		} else {
			o.ended = nil // who comes later is the first
		}
		o.mu.Unlock()
		close(ended)
		return s, a, err
	}
	o.mu.Unlock()
	select {
	case <-ended:
	case <-ctx.Done():
		return nil, warmset.Answer{}, context.Cause(ctx)
	}
	o.mu.Lock()
	first, err := o.first, o.err
	o.mu.Unlock()
	if first == nil {
		return nil, warmset.Answer{}, err
	}
	return open(first)
}

// answerOf is who is at the other end of a session of dialKept; zero if it has ended.
func (p *Proxy) answerOf(s *hbone.Session) warmset.Answer {
	a, _ := p.answers.Load(s)
	answer, _ := a.(warmset.Answer)
	return answer
}

// keep tells what came of the session v.session, in whose stream a connection has been
// opened, and counts the connection. It returns false if that is not counted.
func (p *Proxy) keep(v via, in *hbone.Session) bool {
	if !v.reserved || p.kept.Opened(v.session, p.answerOf(in)) {
		return p.kept.Use(v.session)
	}
	return false
}

// used ends a connection on s, counted or not. A session that the set has given up
// meanwhile, or that was opened for it too late, serves nobody else.
func (p *Proxy) used(s warm.Session, counted bool) {
	if counted {
		p.kept.Done(s)
	}
	if !p.kept.Knows(s) {
		p.pool.RetireKey(keptKey(s))
	}
}

// keepNone tells that an attempt on v.session has failed, in if it came so far. broken
// says that whoever is at the other end is to blame, or the way there.
func (p *Proxy) keepNone(v via, in *hbone.Session, f *failure, broken bool) {
	switch {
	case v.chosen:
		if broken {
			p.kept.Broken(v.session)
		}
		p.used(v.session, true)
	case !v.reserved:
		p.used(v.session, false)
	case in != nil && f.responded():
		p.kept.Opened(v.session, p.answerOf(in))
	default:
		p.kept.Failed(v.session, false)
		p.pool.RetireKey(keptKey(v.session))
	}
}
