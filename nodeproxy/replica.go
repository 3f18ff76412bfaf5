package nodeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// Several gateways of a network may share an address, as replicas behind a load balancer do.
// After the TLS handshake it is known which replica answered (hbone.ReplicaProtocol). The session
// then belongs to that replica, even if another one was dialed. One dial is one handshake, and its
// result counts for the replica that answered. Callers that wanted another replica get an
// elsewhereError. They dial again or use the replica that answered.

// elsewhereError is a dial of one gateway that another replica at its address answered.
type elsewhereError struct {
	want string // picker.GatewayKey
	got  string // picker.GatewayKey; empty if discovery does not list the replica yet
	lost bool   // want did not answer so many dials that it is considered gone
}

func (e *elsewhereError) Error() string {
	got := "an unlisted replica"
	if e.got != "" {
		got = "gateway " + e.got
	}
	return fmt.Sprintf("dialed gateway %s, but %s answered at the same address", e.want, got)
}

// isElsewhere reports whether err is an elsewhereError.
func isElsewhere(err error) bool { return errors.As(err, new(*elsewhereError)) }

const (
	// patientDials is the number of consecutive dials of one replica for a session to be kept.
	patientDials = 6
	// vainDials is after how many consecutive dials, for each gateway at an address, without an
	// answer from the wanted replica that one is considered lost. If the balancer draws a replica
	// at random each time, one in 400 is considered lost wrongly.
	vainDials = 6
	// strangersFirst is the number of consecutive unlisted replicas that are skipped. The next
	// one is used in place of the wanted replica, as discovery of that network is out of date.
	strangersFirst = 4
	// dialsAtFailure is the limit of attempts in one dial, or the number of addresses if that is
	// higher. The next one starts when an attempt has failed, or after dialStagger without an
	// answer: its backend may be gone.
	dialsAtFailure = 3
	dialStagger    = 400 * time.Millisecond
)

// replicas counts the results of dials of gateways that share an address. The zero value is
// ready for use. Safe for concurrent use.
type replicas struct {
	mu        sync.Mutex
	vain      map[string]int // dials since the gateway last answered, by picker.GatewayKey
	strangers map[string]int // consecutive answers of unlisted replicas, by address
}

// answered records that got answered a dial of want, one of several gateways at an address. got is
// empty for an unlisted replica. lost reports whether want is considered lost. taken reports
// whether an unlisted replica is to be used in place of want.
func (r *replicas) answered(want, got, address string, gateways int) (lost, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.vain == nil {
		r.vain, r.strangers = map[string]int{}, map[string]int{}
	}
	if got == "" {
		if r.strangers[address]++; r.strangers[address] > strangersFirst {
			return false, true
		}
	} else {
		delete(r.strangers, address)
		delete(r.vain, got)
	}
	if got == want {
		return false, false
	}
	r.vain[want]++
	return r.vain[want] >= vainDials*gateways, false
}

// retain removes the gateways and addresses that snap does not list.
func (r *replicas) retain(snap *mesh.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.vain {
		if picker.Gateway(snap, key) == nil {
			delete(r.vain, key)
		}
	}
	listed := map[string]bool{}
	for _, n := range snap.GatewayNetworks() {
		for _, g := range snap.Gateways(n) {
			listed[g.Address.String()] = true
		}
	}
	maps.DeleteFunc(r.strangers, func(address string, _ int) bool { return !listed[address] })
}

// meet reports whether x and g have an address in common.
func meet(x, g *mesh.Gateway) bool {
	at := func(a netip.AddrPort) bool { return a == g.Address || slices.Contains(g.More, a) }
	return at(x.Address) || slices.ContainsFunc(x.More, at)
}

// replicasOf returns the gateways that share an address with g, g first.
func replicasOf(snap *mesh.Snapshot, g *mesh.Gateway) []*mesh.Gateway {
	out := []*mesh.Gateway{g}
	for _, x := range snap.Gateways(g.Network) {
		if x.Name != g.Name && meet(x, g) && x.Identity == g.Identity {
			out = append(out, x)
		}
	}
	return out
}

// apart returns gateways of the local network, each with an address of its own. Gateways that
// share an address have another one for federation. A node proxy connects to each of them.
func apart(gateways []*mesh.Gateway) []*mesh.Gateway {
	out := slices.Clone(gateways)
	for i, g := range out {
		if g.Federation.IsValid() && g.Federation != g.Address && slices.ContainsFunc(gateways, func(x *mesh.Gateway) bool { return x != g && x.Address == g.Address }) {
			own := *g
			own.Address = g.Federation
			out[i] = &own
		}
	}
	return out
}

// gatewayDialer returns the function that opens a session with g as source, over a transport. If
// another replica answers, its session is passed to keep, which reports whether it takes the session.
func (p *Proxy) gatewayDialer(source origin, g *mesh.Gateway, over string, keep func(*mesh.Gateway, *hbone.Session) bool) func(context.Context) (*hbone.Session, error) {
	return func(ctx context.Context) (*hbone.Session, error) {
		s, err := p.dialGateway(ctx, source, g, over, keep)
		var wrong *identity.PeerError
		if errors.As(err, &wrong) {
			err = &misnamedGateway{err, p.renamed(g, wrong)}
		}
		return s, err
	}
}

// way has the addresses of one attempt to dial a gateway.
type way struct{ tcp, quic netip.AddrPort }

// waysTo returns the ways to dial g over a transport, at least one: one for each address. Where both transports may be
// used, the addresses of the one that has fewer repeat.
func waysTo(g *mesh.Gateway, over string) []way {
	tcp, quic := g.Dialled(false), g.Dialled(true)
	n := max(len(tcp), len(quic))
	switch over {
	case lines.TCP:
		n = len(tcp)
	case lines.QUIC:
		n = len(quic)
	}
	out := make([]way, n)
	for i := range out {
		out[i] = way{tcp[i%len(tcp)], quic[i%len(quic)]}
	}
	return out
}

func (p *Proxy) dialGateway(ctx context.Context, source origin, g *mesh.Gateway, over string, keep func(*mesh.Gateway, *hbone.Session) bool) (*hbone.Session, error) {
	all := replicasOf(p.store.Current(), g)
	to := waysTo(g, over)
	if len(all) == 1 && len(to) == 1 {
		o, err := p.dialOuter(ctx, source, g, over, to[0], "h2")
		if err != nil {
			return nil, err
		}
		return p.startOuter(o.t, g, source, o.expires)
	}
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = picker.GatewayKey(x)
	}
	turn := rand.IntN(len(to))
	o, err := firstOf(ctx, max(dialsAtFailure, len(to)), func(ctx context.Context, i int) (opened, error) {
		return p.dialOuter(ctx, source, g, over, to[(turn+i)%len(to)], hbone.ClientProtocols(names...)...)
	}, anotherWay(len(to)), func(o opened) { o.t.Close() })
	if err != nil {
		return nil, err
	}
	by := g
	switch protocol := o.t.Protocol(); protocol {
	case "h2", "h3": // the replica does not send its name
	case hbone.AnyReplica:
		by = nil
	default:
		if i := slices.IndexFunc(names, func(n string) bool { return hbone.ReplicaProtocol(n) == protocol }); i >= 0 {
			by = all[i]
		}
	}
	if len(all) == 1 {
		by = g
	}
	e := &elsewhereError{want: names[0]}
	if by != nil {
		e.got = picker.GatewayKey(by)
	}
	lost, taken := p.replicas.answered(e.want, e.got, g.Address.String(), len(all))
	e.lost = lost
	if by == nil && !taken {
		p.metrics.replicas.WithLabelValues("unknown").Inc()
		o.t.Close()
		return nil, e
	}
	s, err := p.startOuter(o.t, cmp.Or(by, g), source, o.expires)
	switch {
	case err != nil:
		return nil, err
	case taken:
		p.metrics.replicas.WithLabelValues("taken").Inc()
		return s, nil
	case by == g:
		p.metrics.replicas.WithLabelValues("asked").Inc()
		return s, nil
	}
	p.metrics.replicas.WithLabelValues("other").Inc()
	if keep == nil || !keep(by, s) { // a draining replica too: it may be the only one that the balancer leads to
		s.Close(nil)
	}
	return nil, e
}

// adopt offers a session that was dialed for another replica over a transport to those of g, for bulk or for others.
func (p *Proxy) adopt(source origin, over string, bulk bool) func(*mesh.Gateway, *hbone.Session) bool {
	return func(g *mesh.Gateway, s *hbone.Session) bool {
		key := p.gatewayKey(source, g, over)
		key.Bulk = bulk
		return p.pool.Adopt(key, s)
	}
}

// anotherWay returns whether another dial follows err. A failure of the hop may be one of a single
// backend. One of several addresses may belong to another server, such as an address that the load
// balancer has released. Local failures do not count.
func anotherWay(addresses int) func(err error) bool {
	return func(err error) bool {
		b := blameOf(err)
		return b == blameHop || b == blameIdentity && addresses > 1
	}
}

// firstOf makes up to n attempts and returns the first result; drop gets later ones. The next
// attempt starts when one has failed and another allows it, or after dialStagger. If all fail,
// firstOf returns the error that came first.
func firstOf[T any](ctx context.Context, n int, try func(ctx context.Context, i int) (T, error), another func(error) bool, drop func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, n)
	begun, ended := 0, 0
	begin := func() {
		i := begun
		begun++
		go func() {
			v, err := try(ctx, i)
			results <- result{v, err}
		}()
	}
	begin()
	defer func() {
		left := begun - ended
		if left == 0 {
			return
		}
		go func() { // ctx stops each attempt
			for range left {
				if r := <-results; r.err == nil {
					drop(r.value)
				}
			}
		}()
	}()
	stagger := time.NewTicker(dialStagger)
	defer stagger.Stop()
	var first error
	for {
		select {
		case r := <-results:
			ended++
			if r.err == nil {
				return r.value, nil
			}
			if first == nil {
				first = r.err
			}
			again := begun < n && ctx.Err() == nil && another(r.err)
			if again {
				begin()
			} else if ended == begun {
				return none, first
			}
		case <-stagger.C:
			if begun < n && ctx.Err() == nil {
				begin()
			}
		}
	}
}
