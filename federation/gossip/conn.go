package gossip

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/antientropy"
	"github.com/isthmus-mesh/isthmus/federation/networkkey"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// The first byte of a connection says what it carries.
const (
	kindPacket byte = 1 // memberlist's packets, and messages too large for one; an empty one is a sign of life
	kindBulk   byte = 2 // large messages
	kindStream byte = 3 // one exchange of members
)

const (
	packetQueue = 256
	bulkQueue   = 8
	queueBytes  = 2 << 20  // that wait for a peer that reads slowly, on each connection
	burst       = 64 << 10 // bytes written at once
)

// conn is one connection, whoever has dialed it. Both ends send on it.
type conn struct {
	net.Conn
	transport *transport
	kind      byte
	dialled   bool
	gateway   string // network/name
	local     bool   // of the own network
	door      string // the network whose door was dialed; empty: none
	instance  record.Instance
	identity  spiffeid.ID // by TLS
	queue     chan []byte
	waiting   atomic.Int64 // bytes in queue
	ready     func()       // nil, or told that queue takes messages

	raw         []byte // certificate as it came
	certificate *networkkey.Certificate
	expiry      time.Time               // of what the peer has proved itself by; this end gives the connection up then
	cancel      context.CancelCauseFunc // ends serve; nil before
}

// greet introduces both ends; whoever has dialed is first, with the kind of the
// connection.
func (c *conn) greet(ctx context.Context, id spiffeid.ID, kind []byte) error {
	stop := context.AfterFunc(ctx, func() { link.CloseAbruptly(c.Conn) })
	defer stop()
	c.SetDeadline(time.Now().Add(2 * c.transport.f.cfg.timing.dial))
	if c.dialled {
		if err := c.introduce(kind); err != nil {
			return err
		}
		return c.hear(id)
	}
	var first [1]byte
	if _, err := io.ReadFull(c, first[:]); err != nil {
		return err
	}
	if c.kind = first[0]; c.kind != kindPacket && c.kind != kindBulk && c.kind != kindStream {
		return &peer.MalformedError{Cause: fmt.Errorf("connection of unknown kind %d", c.kind)}
	}
	if err := c.hear(id); err != nil {
		return err
	}
	return c.introduce(nil)
}

// serve carries messages both ways until the connection fails, goes silent, or
// ctx ends; then what is queued is still sent.
func (c *conn) serve(ctx context.Context) error {
	size := packetQueue
	if c.kind == kindBulk {
		size = bulkQueue
	}
	c.queue = make(chan []byte, size)
	c.SetDeadline(time.Time{})
	ctx, c.cancel = context.WithCancelCause(ctx)
	cancel := c.cancel
	defer cancel(nil)
	if err := c.transport.add(c); err != nil {
		return err
	}
	if c.kind == kindPacket {
		defer func() { c.transport.f.connected(c.instance, c.gateway, c.local) }() // once it is removed
	}
	defer c.transport.remove(c)
	if err := c.stillKnown(c.transport.f.held().Known); err != nil { // hear has read them before add
		return err
	}
	if c.kind == kindPacket {
		c.transport.f.connected(c.instance, c.gateway, c.local)
	}
	if c.ready != nil {
		c.ready()
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.write(ctx)
		link.CloseAbruptly(c.Conn)
	}()
	err := c.read()
	cancel(nil)
	<-stopped
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// end gives the connection up. What is queued is still sent, unless the other end is
// not to hear it.
func (c *conn) end(cause error, abruptly bool) {
	c.cancel(cause)
	if abruptly {
		link.CloseAbruptly(c.Conn)
	}
}

// read hands messages to the federation. What is wrong with one is counted and
// logged, and the connection goes on.
func (c *conn) read() error {
	in := inspector{from: c.instance, about: c.member()}
	for {
		c.SetReadDeadline(time.Now().Add(c.patience()))
		m, err := link.ReadFrame(c, 1+antientropy.MaxMessage, nil) // passed on as it is: no buffer to use again
		if err != nil {
			return err
		}
		c.transport.f.cfg.Metrics.Received.WithLabelValues(c.label()).Add(float64(link.FrameHeader + len(m)))
		switch {
		case len(m) == 0:
		case c.kind == kindBulk:
			c.take(m)
		case m[0] == typeDirect:
			c.take(m[1:])
		default:
			if err := in.admit(m, time.Now()); err != nil {
				c.transport.f.complain(c.gateway, err)
				continue
			}
			select {
			case c.transport.packets <- &memberlist.Packet{Buf: m, From: c.RemoteAddr(), Timestamp: time.Now()}:
			case <-c.transport.ctx.Done():
				return c.transport.ctx.Err()
			}
		}
	}
}

func (c *conn) take(m []byte) {
	if err := c.transport.f.receive(c.instance, m); err != nil {
		c.transport.f.complain(c.gateway, err)
	}
}

func (c *conn) patience() time.Duration {
	if c.kind == kindBulk {
		return c.transport.f.cfg.timing.idle
	}
	return c.transport.f.cfg.timing.silence
}

// put queues a message, or drops it if the queue is full, by number or by bytes: a
// digest will tell that it is missing.
func (c *conn) put(m []byte) {
	if n := int64(len(m)); c.waiting.Add(n) <= queueBytes {
		select {
		case c.queue <- m:
			return
		default:
		}
	}
	c.waiting.Add(-int64(len(m)))
	queue := "packets_out"
	if c.kind == kindBulk {
		queue = "bulk_out"
	}
	c.transport.f.cfg.Metrics.Dropped.WithLabelValues(queue).Inc()
}

// took notes that m has left the queue.
func (c *conn) took(m []byte) []byte {
	c.waiting.Add(-int64(len(m)))
	return m
}

// write sends what is queued, and signs of life on a connection for packets.
func (c *conn) write(ctx context.Context) {
	ping := time.NewTicker(c.transport.f.cfg.timing.ping)
	defer ping.Stop()
	if c.kind == kindBulk {
		ping.Stop()
	}
	for {
		var out []byte
		select {
		case <-ctx.Done():
			c.drain()
			return
		case m := <-c.queue:
			out = c.gather(c.took(m))
			if c.kind == kindPacket {
				ping.Reset(c.transport.f.cfg.timing.ping)
			}
		case <-ping.C:
			out = link.AppendFrame(nil, nil)
		}
		if !c.flush(out, c.patience()) {
			return
		}
	}
}

// gather returns m and what else waits, as one burst.
func (c *conn) gather(m []byte) []byte {
	out := link.AppendFrame(nil, m)
	for len(out) < burst {
		select {
		case m = <-c.queue:
			out = link.AppendFrame(out, c.took(m))
		default:
			return out
		}
	}
	return out
}

// drain sends what was queued before the end: often it says so.
func (c *conn) drain() {
	select {
	case m := <-c.queue:
		c.flush(c.gather(c.took(m)), 200*time.Millisecond)
	default:
	}
}

func (c *conn) flush(out []byte, patience time.Duration) bool {
	c.SetWriteDeadline(time.Now().Add(patience))
	n, err := c.Write(out)
	if c.kind == kindBulk {
		c.SetReadDeadline(time.Now().Add(patience)) // it is in use
	}
	c.transport.f.cfg.Metrics.Bytes.WithLabelValues(c.label()).Add(float64(n))
	return err == nil
}

// label is the kind of c in metrics.
func (c *conn) label() string {
	if c.kind == kindBulk {
		return "stream"
	}
	return "packet"
}
