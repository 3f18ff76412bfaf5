package gossip

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	maxOpen      = 1024 // connections that were accepted, at once
	maxInstances = 8    // of one gateway that are connected at once: two, and those that are about to end
)

// transport keeps connections to all gateways that discovery lists, in two
// kinds: one for messages that must not wait, and, while there is some, one for
// bulk. Where a gateway is dialed and who must answer there is discovery's
// word.
type transport struct {
	f        *Federation
	refusals *identity.Refusals

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	packets   chan *memberlist.Packet
	streams   chan net.Conn
	exchanges chan struct{} // as many as others have begun
	doors     doors

	mu        sync.Mutex
	lanes     map[laneKey]*lane
	doorLanes map[doorKey]*doorLane
	links     map[string]*links // by peer, as the node calls it
	open      map[net.Conn]struct{}
	closed    bool
}

// links are the connections of one instance: the one that we have dialed and
// the one that it has, of each kind. The first of a kind is used.
type links struct {
	gateway string // network/name
	conns   [2][2]*conn
}

func (l *links) slot(c *conn) **conn {
	way := 0
	if !c.dialled {
		way = 1
	}
	return &l.conns[c.kind-kindPacket][way]
}

// of returns a connection of a kind, nil if there is none.
func (l *links) of(kind byte) *conn {
	if l == nil {
		return nil
	}
	pair := l.conns[kind-kindPacket]
	if pair[0] != nil {
		return pair[0]
	}
	return pair[1]
}

func newTransport(f *Federation) *transport {
	t := &transport{f: f, refusals: identity.NewRefusals(f.cfg.Log), lanes: map[laneKey]*lane{}, doorLanes: map[doorKey]*doorLane{}, links: map[string]*links{}, open: map[net.Conn]struct{}{},
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), exchanges: make(chan struct{}, maxStreams)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// run dials every gateway that discovery lists, until ctx ends.
func (t *transport) run(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		t.followDoors()
		t.follow()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Shutdown implements [memberlist.Transport]: it sends what is queued, closes
// all connections and waits for everything that the transport has started.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.wg.Wait()
	return nil
}

// follow starts lanes to gateways that discovery lists, and ends those to
// others and to gateways that have moved. It ends what others have dialed, too, once
// they are listed no more.
func (t *transport) follow() {
	listed := map[laneKey]bool{}
	peers := map[peerKey]bool{}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	for _, g := range t.f.cfg.Peers() {
		peers[peerKey{g.Network + "/" + g.Name, g.Identity}] = true
		for _, kind := range []byte{kindPacket, kindBulk} {
			k := laneKey{g.Network, g.Name, dialAddress(g), g.Identity, kind}
			listed[k] = true
			if t.lanes[k] == nil {
				ctx, cancel := context.WithCancel(t.ctx)
				l := &lane{transport: t, laneKey: k, cancel: cancel, wanted: make(chan struct{}, 1), again: make(chan struct{}, 1)}
				t.lanes[k] = l
				t.wg.Go(func() { l.run(ctx) })
			}
		}
	}
	for k, l := range t.lanes {
		if !listed[k] {
			l.cancel()
			delete(t.lanes, k)
		}
	}
	now := time.Now()
	for c := range t.conns() {
		switch {
		case !peers[peerKey{c.gateway, c.identity}] && !t.doors.admits(c.network(), c.identity):
			c.end(&peer.IdentityError{Cause: fmt.Errorf("discovery lists gateway %s with the identity %q no more", c.gateway, c.identity)}, true)
		case now.After(c.expiry):
			c.end(errExpired, false)
		}
	}
}

// network is that of the other end of c.
func (c *conn) network() string {
	network, _, _ := strings.Cut(c.gateway, "/")
	return network
}

// peerKey is who a connection is with.
type peerKey struct {
	gateway  string // network/name
	identity spiffeid.ID
}

// conns yields all connections that are in use. The caller holds mu.
func (t *transport) conns() iter.Seq[*conn] {
	return func(yield func(*conn) bool) {
		for _, l := range t.links {
			for _, pair := range l.conns {
				for _, c := range pair {
					if c != nil && !yield(c) {
						return
					}
				}
			}
		}
	}
}

// keep ends connections with networks that are not known any more by the key that
// vouched for their gateways.
func (t *transport) keep(known networkkey.Known) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns() {
		if err := c.stillKnown(known); err != nil {
			c.end(err, true)
		}
	}
}

// redial has every gateway dialed now that is not connected: other keys are known.
func (t *transport) redial() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lanes {
		l.retry()
	}
	for _, l := range t.doorLanes {
		l.retry()
	}
}

// has says whether a peer can be sent anything.
func (t *transport) has(peer string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.links[peer].of(kindPacket) != nil
}

// send queues a message and never waits. One to somebody who is not connected
// is lost, like any message may be.
func (t *transport) send(o antientropy.Output) {
	bulk := o.Bulk || len(o.Message) > maxMessage
	if !bulk && t.f.tell(o) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.links[o.Peer]
	if bulk {
		if c := l.of(kindBulk); c != nil {
			c.put(o.Message)
			return
		}
		if t.await(l, o) {
			return
		}
	}
	if c := l.of(kindPacket); c != nil {
		c.put(append([]byte{typeDirect}, o.Message...))
		return
	}
	t.f.cfg.Metrics.Dropped.WithLabelValues("unknown_peer").Inc()
}

// gatewayOf returns the gateway (network/name) that an instance is connected as,
// "" if it is not.
func (t *transport) gatewayOf(id record.Instance) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.links[id.String()]; l != nil {
		return l.gateway
	}
	return ""
}

// without returns the gateways of which an instance is connected and not alive.
func (t *transport) without(alive func(gateway string, id record.Instance) bool) map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := map[string]bool{}
	for _, l := range t.links {
		if c := l.of(kindPacket); c != nil && !alive(l.gateway, c.instance) {
			out[l.gateway] = true
		}
	}
	return out
}

// await leaves a bulk message to a connection that is going to be dialed for
// it; false if there is no reason to expect one to that instance. The caller
// holds mu.
func (t *transport) await(to *links, o antientropy.Output) bool {
	if to == nil {
		return false
	}
	for _, l := range t.lanes {
		if l.kind == kindBulk && l.name() == to.gateway && !l.vain && len(l.pending) < bulkQueue {
			l.pending = append(l.pending, o)
			select {
			case l.wanted <- struct{}{}:
			default:
			}
			return true
		}
	}
	return false
}

// add makes a connection usable; one that it replaces is closed.
func (t *transport) add(c *conn) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	name := c.instance.String()
	l := t.links[name]
	if l == nil {
		siblings, behind := 0, 0
		for _, other := range t.links {
			if other.gateway == c.gateway {
				siblings++
			}
			if strings.HasPrefix(other.gateway, c.network()+"/") {
				behind++
			}
		}
		if behind >= maxBehind && !c.member() {
			return fmt.Errorf("%d instances of network %s are connected, the limit: %w", behind, c.network(), peer.ErrFull)
		}
		if siblings >= maxInstances {
			return fmt.Errorf("%d instances of gateway %s are connected, the limit: %w", siblings, c.gateway, peer.ErrFull)
		}
		l = &links{gateway: c.gateway}
		t.links[name] = l
	}
	slot := l.slot(c)
	if c.door != "" && *slot != nil {
		return errTwice
	}
	if old := *slot; old != nil {
		link.CloseAbruptly(old.Conn)
	}
	*slot = c
	for _, l := range t.lanes {
		if !c.dialled && !l.refused && l.name() == c.gateway {
			l.retry() // it is back
		}
	}
	return nil
}

func (t *transport) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := c.instance.String()
	l := t.links[name]
	if l == nil || *l.slot(c) != c {
		return
	}
	*l.slot(c) = nil
	if l.conns == ([2][2]*conn{}) {
		delete(t.links, name)
	}
}

// accept takes a connection whose other end has proved to be id. It returns
// at once.
func (t *transport) accept(conn net.Conn, id spiffeid.ID) {
	if err := t.admit(conn, id); err != nil {
		t.refused(id, err)
		link.CloseAbruptly(conn)
	}
}

func (t *transport) admit(raw net.Conn, id spiffeid.ID) error {
	if !slices.ContainsFunc(t.f.cfg.Peers(), func(g *mesh.Gateway) bool { return g.Identity == id }) && !t.doors.shows(id) {
		return &peer.IdentityError{Cause: fmt.Errorf("%q is no gateway that discovery knows", id)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return net.ErrClosed
	case len(t.open) >= maxOpen:
		return fmt.Errorf("%d federation connections are open, the limit: %w", len(t.open), peer.ErrFull)
	}
	t.open[raw] = struct{}{}
	t.wg.Go(func() {
		t.refused(id, t.answer(raw, id))
		link.CloseAbruptly(raw)
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.open, raw)
	})
	return nil
}

// answer serves a connection that was accepted.
func (t *transport) answer(raw net.Conn, id spiffeid.ID) error {
	c := &conn{Conn: raw, transport: t}
	if err := c.greet(t.ctx, id, nil); err != nil {
		return err
	}
	if c.kind == kindStream {
		if !c.member() {
			return &peer.IdentityError{Cause: fmt.Errorf("gateway %.80q would exchange members, and discovery lists it not", c.gateway)}
		}
		return t.handOver(c)
	}
	return c.serve(t.ctx)
}

// refused counts and logs why a connection ended. A plain end is none of it.
func (t *transport) refused(id spiffeid.ID, err error) {
	reason := reasonOf(err)
	if reason == "" || t.ctx.Err() != nil {
		return
	}
	t.f.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	t.f.noteRefusal(err)
	t.f.rare.Sample(t.f.cfg.Log.Warn(), id.String(), reason).Err(err).Stringer("peer", id).Str("reason", reason).Msg("federation connection refused")
}

// errSelf is a connection that has led back to this process.
var errSelf = errors.New("the address leads to this process itself")

// errExpired is the end of a certificate: the peer is to prove itself anew.
var errExpired = errors.New("a certificate that the peer has shown ends")
