package gossip

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// The first byte of a connection says what it carries.
const (
	kindPacket byte = 1 // frames, each one packet; an empty one is a ping or its echo
	kindStream byte = 2 // one exchange of memberlist's
)

const (
	maxOpen   = 1024 // connections at once that we accept at, of both kinds
	packetsIn = 1024 // packets that wait for memberlist

	maxPacket = 64 << 10 // bytes of one gossip packet
)

// transport carries memberlist over mutually authenticated TLS connections.
// Packets to one peer share one connection (see lane); streams have their own.
// Where a peer is dialled and who must answer there is discovery's word, not
// what a member says of itself.
type transport struct {
	self      spiffeid.ID
	identity  link.Source
	peers     func() []*mesh.Gateway
	advertise netip.AddrPort
	log       zerolog.Logger
	metrics   *peer.Metrics
	once      logging.Once
	refusals  *identity.Refusals
	times     timing
	connect   link.Dial
	// repaired is told that packets to a peer flow, after some were lost.
	repaired func(*mesh.Gateway)

	packets chan *memberlist.Packet
	streams chan net.Conn

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	lanes  map[string]*lane
	open   map[net.Conn]struct{} // accepted, and streams that we dialled
	closed bool
}

// timing bounds every wait of the transport: a peer behind a silent black hole
// must be noticed, and found again when the hole closes.
type timing struct {
	dial       time.Duration // TCP, and TLS, each
	ping       time.Duration // between pings on a lane
	silence    time.Duration // without an echo before a lane is given up
	maxBackoff time.Duration // between dials of a lane
	stale      time.Duration // age at which a packet that waits is not worth sending
}

var defaultTiming = timing{
	dial:       1500 * time.Millisecond,
	ping:       time.Second,
	silence:    2500 * time.Millisecond,
	maxBackoff: 500 * time.Millisecond,
	stale:      200 * time.Millisecond,
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(cfg Config) *transport {
	t := &transport{
		self: cfg.Self, identity: cfg.Identity, peers: cfg.Peers, advertise: cfg.Advertise,
		log: cfg.Log, metrics: cfg.Metrics, once: logging.Once{Log: cfg.Log}, refusals: identity.NewRefusals(cfg.Log), times: cfg.timing, connect: cfg.dial,
		repaired: func(*mesh.Gateway) {},
		packets:  make(chan *memberlist.Packet, packetsIn),
		streams:  make(chan net.Conn, 16),
		lanes:    map[string]*lane{},
		open:     map[net.Conn]struct{}{},
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return t
}

// FinalAdvertiseAddr implements [memberlist.Transport]: the address at which
// others are told to dial, which may be that of a relay.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().AsSlice(), int(t.advertise.Port()), nil
}

// PacketCh implements [memberlist.Transport].
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements [memberlist.Transport].
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements [memberlist.Transport].
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress queues a packet and never waits. A packet to somebody whom
// discovery does not know is lost, like any packet may be: an error would keep
// memberlist from ever suspecting that member.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := time.Now()
	g := t.find(a)
	switch {
	case g == nil:
		t.metrics.Dropped.WithLabelValues("unknown_peer").Inc()
	case len(b) > maxPacket:
		t.metrics.Dropped.WithLabelValues("oversized").Inc()
		return now, fmt.Errorf("send packet of %d bytes to %s, limit %d: %w", len(b), a.String(), maxPacket, link.ErrOversized)
	default:
		t.lane(g).put(append([]byte(nil), b...), now)
	}
	return now, nil
}

// DialTimeout implements [memberlist.Transport].
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to a gateway that discovery knows.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	g := t.find(a)
	if g == nil {
		return nil, fmt.Errorf("dial federation peer %s: discovery knows no such gateway", a.String())
	}
	conn, err := t.dial(g, kindStream, min(timeout, t.times.dial))
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		link.CloseAbruptly(conn)
		return nil, net.ErrClosed
	}
	t.open[conn] = struct{}{}
	return &stream{Conn: conn, transport: t}, nil
}

func (t *transport) dial(g *mesh.Gateway, kind byte, timeout time.Duration) (*tls.Conn, error) {
	conn, err := t.connect.TLS(t.ctx, t.identity, t.self, g.Identity, dialAddress(g).String(), ALPN, timeout)
	if err != nil && identity.ReasonOf(err) != identity.ReasonHandshake {
		t.refusals.Note("federation", "", net.TCPAddrFromAddrPort(dialAddress(g)), err)
	}
	if err != nil {
		return nil, err
	}
	if err = conn.SetWriteDeadline(time.Now().Add(timeout)); err == nil {
		_, err = conn.Write([]byte{kind})
	}
	if err != nil {
		link.CloseAbruptly(conn)
		return nil, fmt.Errorf("open federation connection to %s: %w", g.Name, err)
	}
	return conn, nil
}

// find returns the gateway meant by a: by name if there is one, else by address.
func (t *transport) find(a memberlist.Address) *mesh.Gateway {
	for _, g := range t.peers() {
		if a.Name != "" {
			if federation.OriginName(g.Network, g.Name) == a.Name {
				return g
			}
		} else if dialAddress(g).String() == a.Addr {
			return g
		}
	}
	return nil
}

// lane returns the lane to g, starting it if needed. Lanes to gateways that
// moved or that discovery dropped are ended.
func (t *transport) lane(g *mesh.Gateway) *lane {
	name := federation.OriginName(g.Network, g.Name)
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lanes[name]
	if l != nil && sameTarget(l.gateway, g) {
		return l
	}
	if l != nil {
		l.cancel()
	}
	ctx, cancel := context.WithCancel(t.ctx)
	l = &lane{transport: t, gateway: g, cancel: cancel, queue: make(chan packet, laneQueue)}
	t.lanes[name] = l
	if !t.closed {
		t.wg.Go(func() { l.run(ctx) })
	}
	return l
}

func sameTarget(a, b *mesh.Gateway) bool {
	return dialAddress(a) == dialAddress(b) && a.Identity == b.Identity
}

// prune ends lanes to gateways that discovery no longer lists.
func (t *transport) prune() {
	listed := map[string]bool{}
	for _, g := range t.peers() {
		listed[federation.OriginName(g.Network, g.Name)] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, l := range t.lanes {
		if !listed[name] {
			l.cancel()
			delete(t.lanes, name)
		}
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

func (t *transport) admit(conn net.Conn, id spiffeid.ID) error {
	known := false
	for _, g := range t.peers() {
		known = known || g.Identity == id
	}
	if !known {
		return &peer.IdentityError{Cause: fmt.Errorf("%q is no gateway that discovery knows", id)}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return net.ErrClosed
	}
	if len(t.open) >= maxOpen {
		return fmt.Errorf("%d federation connections are open, the limit: %w", len(t.open), peer.ErrFull)
	}
	t.open[conn] = struct{}{}
	t.wg.Go(func() { t.serve(conn, id) })
	return nil
}

func (t *transport) forget(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, conn)
}

// serve reads what a connection is for and serves packets itself; streams go
// to memberlist.
func (t *transport) serve(conn net.Conn, id spiffeid.ID) {
	var kind [1]byte
	conn.SetReadDeadline(time.Now().Add(2 * t.times.dial))
	_, err := io.ReadFull(conn, kind[:])
	switch {
	case err != nil:
	case kind[0] == kindPacket:
		err = t.servePackets(conn)
	case kind[0] == kindStream:
		conn.SetReadDeadline(time.Time{})
		if t.handOver(conn) { // still open: its Close ends it
			return
		}
		t.metrics.Dropped.WithLabelValues("streams").Inc()
	default:
		err = &peer.MalformedError{Cause: fmt.Errorf("connection of unknown kind %d", kind[0])}
	}
	link.CloseAbruptly(conn)
	t.forget(conn)
	t.refused(id, err)
}

// handOver gives a stream to memberlist, which closes it.
func (t *transport) handOver(conn net.Conn) bool {
	patience := time.NewTimer(t.times.dial)
	defer patience.Stop()
	select {
	case t.streams <- &stream{Conn: conn, transport: t}:
		return true
	case <-patience.C:
	case <-t.ctx.Done():
	}
	return false
}

// stream counts as open until memberlist closes it.
type stream struct {
	net.Conn
	transport *transport
}

func (s *stream) Close() error {
	s.transport.forget(s.Conn)
	return s.Conn.Close()
}

// servePackets reads frames until the lane at the other end is silent for
// longer than its pings allow. Packets that memberlist is too slow for are lost.
func (t *transport) servePackets(conn net.Conn) error {
	for {
		conn.SetReadDeadline(time.Now().Add(2 * t.times.silence))
		body, err := link.ReadFrame(conn, maxPacket, nil)
		if err != nil {
			return err
		}
		if len(body) == 0 {
			conn.SetWriteDeadline(time.Now().Add(t.times.silence))
			if _, err := conn.Write(link.AppendFrame(nil, nil)); err != nil {
				return err
			}
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: body, From: conn.RemoteAddr(), Timestamp: time.Now()}:
		default:
			t.metrics.Dropped.WithLabelValues("packets_in").Inc()
		}
	}
}

func (t *transport) refused(id spiffeid.ID, err error) {
	reason := rejection(err)
	if reason == "" || t.ctx.Err() != nil {
		return
	}
	t.metrics.Rejected.WithLabelValues(reason).Inc()
	t.once.Warn(reason+"/"+id.String(), "federation connection refused", err, func(e *zerolog.Event) {
		e.Stringer("peer", id).Str("reason", reason)
	})
}

// Shutdown implements [memberlist.Transport]. It waits for everything that the
// transport has started.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	t.cancel()
	for conn := range t.open {
		link.CloseAbruptly(conn)
	}
	t.mu.Unlock()
	t.wg.Wait()
	return nil
}
