package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	probeInterval = time.Second
	leaveWait     = 400 * time.Millisecond // for a few members to hear that we leave
)

// nowhere is the address of every member: where a gateway is dialed is
// discovery's word, and what memberlist sends goes by the name.
var nowhere = &net.TCPAddr{IP: net.IPv4zero, Port: 1}

func (f *Federation) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = f.member
	c.Transport = f.transport
	c.AdvertiseAddr, c.AdvertisePort, c.BindPort = nowhere.IP.String(), nowhere.Port, nowhere.Port
	c.Delegate, c.Alive, c.Events = f.members, f.members, f.members
	c.Logger = log.New(&logWriter{f.cfg.Log}, "", 0)
	c.ProbeInterval = probeInterval
	c.ProbeTimeout = probeInterval / 2 // the rest is for indirect probes
	c.SuspicionMult = 3
	c.SuspicionMaxTimeoutMult = 2
	c.AwarenessMaxMultiplier = 2
	c.RetransmitMult = 3
	c.TCPTimeout = 5 * time.Second
	c.DisableTcpPings = true // packets are on TCP already
	c.EnableCompression = false
	c.UDPBufferSize = 32 << 10
	c.HandoffQueueDepth = 256
	return c
}

// logWriter gives memberlist's log to ours, at debug.
type logWriter struct{ log zerolog.Logger }

func (w *logWriter) Write(p []byte) (int, error) {
	w.log.Debug().Str("detail", strings.TrimSuffix(string(p), "\n")).Msg("memberlist")
	return len(p), nil
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// FinalAdvertiseAddr implements [memberlist.Transport].
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return nowhere.IP, nowhere.Port, nil
}

// PacketCh implements [memberlist.Transport].
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements [memberlist.Transport].
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements [memberlist.Transport].
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress queues a packet for the instance that a names, and never waits.
// Without a connection to it the error is one after which memberlist probes it
// through others at once.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	now := time.Now()
	_, id, err := splitMember(a.Name)
	if err != nil {
		return now, err
	}
	if len(b) > maxPacket {
		return now, fmt.Errorf("send packet of %d bytes to %s, limit %d: %w", len(b), a.Name, maxPacket, link.ErrOversized)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.links[id.String()].of(kindPacket)
	if c == nil {
		t.f.cfg.Metrics.Dropped.WithLabelValues("unknown_peer").Inc()
		return now, &net.OpError{Op: "write", Net: "tcp", Err: errNotConnected}
	}
	c.put(b)
	return now, nil
}

var errNotConnected = errors.New("no connection to that instance")

// DialTimeout implements [memberlist.Transport].
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout opens a stream to the gateway of the instance that a names:
// who is a member, any of its instances tells.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	gateway, _, err := splitMember(strings.Replace(a.Name, joinSlash, "/", 1))
	if err != nil {
		return nil, err
	}
	g := t.f.gateway(gateway)
	if g == nil {
		return nil, fmt.Errorf("dial gateway %s: discovery knows none of this name", gateway)
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	f := t.f
	raw, err := f.cfg.dial.TLS(ctx, f.cfg.Identity, f.cfg.Self, g.Identity, dialAddress(g).String(), ALPN, f.cfg.timing.dial)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, transport: t, kind: kindStream, dialled: true}
	if err := c.greet(ctx, g.Identity, []byte{kindStream}); err != nil {
		link.CloseAbruptly(raw)
		t.refused(g.Identity, err)
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	return newStream(t.ctx, t, raw, true), nil
}

// handOver gives an accepted stream to memberlist and waits for its end.
func (t *transport) handOver(c *conn) error {
	select {
	case t.exchanges <- struct{}{}:
	default:
		t.f.cfg.Metrics.Dropped.WithLabelValues("streams").Inc()
		return nil
	}
	defer func() { <-t.exchanges }()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	s := newStream(t.ctx, t, c.Conn, false)
	select {
	case t.streams <- s:
		<-s.closed
	case <-t.ctx.Done():
		s.end()
	}
	return nil
}

// joinSlash stands for the slash of a member's name in addresses to join, where
// a slash ends the name.
const joinSlash = "%2F"

// joinAddress is g as memberlist takes addresses to join.
func joinAddress(g *mesh.Gateway) string {
	return g.Network + joinSlash + g.Name + "@" + record.Instance{}.String() + "/" + nowhere.String()
}
