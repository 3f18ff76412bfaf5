package gossip

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/backoff"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	laneQueue = 256      // packets that wait for one peer
	laneBurst = 64 << 10 // bytes written at once

	minLaneBackoff = 50 * time.Millisecond
)

// lane is the one connection that packets to one gateway travel on. It is
// dialled when there is something to send, and again for as long as discovery
// lists the gateway: the peer is to be found the moment it can be reached.
type lane struct {
	transport *transport
	gateway   *mesh.Gateway
	cancel    context.CancelFunc
	queue     chan packet
	missed    atomic.Bool // a packet was lost since the last repair
}

type packet struct {
	body []byte
	at   time.Time
}

// put queues a packet, or drops it if the queue is full.
func (l *lane) put(b []byte, now time.Time) {
	select {
	case l.queue <- packet{b, now}:
	default:
		l.missed.Store(true)
		l.transport.metrics.Dropped.WithLabelValues("packets_out").Inc()
	}
}

// run keeps the lane up until ctx ends; what is queued then is still sent if
// the connection takes it.
func (l *lane) run(ctx context.Context) {
	defer l.cancel()
	pauses := backoff.Backoff{First: minLaneBackoff, Limit: l.transport.times.maxBackoff}
	failures := 0
	for ctx.Err() == nil {
		start := time.Now()
		err := l.connect(ctx)
		l.transport.log.Debug().Err(err).Str("gateway", l.gateway.Name).Msg("federation lane down")
		if time.Since(start) > l.transport.times.silence {
			failures = 0
		}
		failures++
		if !link.Pause(ctx, pauses.Next(failures)) {
			return
		}
	}
}

// connect dials and carries packets until the connection is of no use.
func (l *lane) connect(ctx context.Context) error {
	conn, err := l.transport.dial(l.gateway, kindPacket, l.transport.times.dial)
	if err != nil {
		return err
	}
	l.repair()
	err = l.carry(ctx, conn)
	l.missed.Store(true) // perhaps: what was written may not have arrived
	return err
}

// repair asks for an exchange of full state if packets were lost.
func (l *lane) repair() {
	if l.missed.Swap(false) {
		l.transport.repaired(l.gateway)
	}
}

// carry sends on conn until it fails or goes silent.
func (l *lane) carry(ctx context.Context, conn *tls.Conn) error {
	failed := make(chan error, 1)
	go func() { failed <- l.listen(conn) }()
	defer func() { link.CloseAbruptly(conn); <-failed }()
	ping := time.NewTicker(l.transport.times.ping)
	defer ping.Stop()
	var out []byte
	for {
		out = out[:0]
		select {
		case <-ctx.Done():
			return l.drain(conn)
		case err := <-failed:
			failed <- err
			return err
		case <-ping.C:
			out = link.AppendFrame(out, nil)
		case p := <-l.queue:
			out = l.gather(out, p)
		}
		l.repair()
		if err := l.write(conn, out); err != nil {
			return err
		}
	}
}

// gather appends p and what else waits, as one burst.
func (l *lane) gather(out []byte, p packet) []byte {
	for {
		if time.Since(p.at) > l.transport.times.stale {
			// Records in it would look younger than they are. Full state tells
			// the peer what it missed.
			l.transport.metrics.Dropped.WithLabelValues("packets_stale").Inc()
			l.missed.Store(true)
		} else {
			out = link.AppendFrame(out, p.body)
		}
		if len(out) >= laneBurst {
			return out
		}
		select {
		case p = <-l.queue:
		default:
			return out
		}
	}
}

// drain sends what was queued before the end: a leave message should arrive.
func (l *lane) drain(conn *tls.Conn) error {
	select {
	case p := <-l.queue:
		return l.write(conn, l.gather(nil, p))
	default:
		return nil
	}
}

func (l *lane) write(conn *tls.Conn, out []byte) error {
	if len(out) == 0 {
		return nil
	}
	if err := conn.SetWriteDeadline(time.Now().Add(l.transport.times.silence)); err != nil {
		return err
	}
	n, err := conn.Write(out)
	l.transport.metrics.Bytes.WithLabelValues("packet").Add(float64(n))
	return err
}

// listen reads the echoes of our pings. A connection that swallows what we
// write looks alive to TCP; it does not echo.
func (l *lane) listen(conn *tls.Conn) error {
	var echo [link.FrameHeader]byte
	for {
		if err := conn.SetReadDeadline(time.Now().Add(l.transport.times.silence)); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, echo[:]); err != nil {
			return fmt.Errorf("no echo from %s: %w", l.gateway.Name, err)
		}
		if echo != [link.FrameHeader]byte{} {
			return &peer.MalformedError{Cause: fmt.Errorf("%s sent packets on a lane that is ours", l.gateway.Name)}
		}
	}
}
