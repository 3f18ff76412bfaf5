// Package pathcheck measures the path to a gateway of another network: round trip, loss, the size of packets that pass,
// throughput, and whether QUIC connects. It uses connections of its own, with mutual TLS and HTTP/2 or HTTP/3 as a client
// has them, and knows no meshes.
//
// Every connection is closed when a call returns. Each call is bounded in time and returns when its context is done.
package pathcheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// Target is a gateway at one address. Both functions may be called at the same time.
type Target struct {
	// Dial connects by TCP, with segments of at most maxSegment bytes both ways (TCP_MAXSEG). 0: as configured.
	Dial func(ctx context.Context, maxSegment int) (net.Conn, error)
	// TLS does the client's handshake. It owns conn.
	TLS func(ctx context.Context, conn net.Conn) (*hbone.TLSTransport, error)
}

const (
	// exchanges are sent one every exchangePause. Each fills two segments to the gateway and one from it: with 5 per cent
	// loss 570 and 300 with bbr. With cubic several share one: 166 to the gateway on average at 80 ms, of which 8 are lost.
	exchanges     = 300
	exchangePause = 5 * time.Millisecond
	// flowTime is how long throughput is measured.
	flowTime = 2 * time.Second
	// SearchTime bounds the search for the largest segment that passes.
	SearchTime = 10 * time.Second
)

// Measure measures the path. If TCP connects and an exchange of full-size packets gets no response, it searches for the
// largest segment that passes. An error is that no connection could be measured.
func (t Target) Measure(ctx context.Context) (*answer.Path, error) {
	path := &answer.Path{}
	c, err := t.fullSize(ctx, path)
	if err != nil {
		return nil, err
	}
	defer c.drop()
	c.sample(ctx, path)
	return path, nil
}

// FullSize is Measure without round trips and losses.
func (t Target) FullSize(ctx context.Context) (*answer.Path, error) {
	path := &answer.Path{}
	c, err := t.fullSize(ctx, path)
	c.drop()
	return path, err
}

// fullSize returns a connection with segments that pass, and notes in path how large their packets are.
func (t Target) fullSize(ctx context.Context, path *answer.Path) (*connection, error) {
	c, err := t.exchange(ctx, 0, path)
	if stalled, ok := errors.AsType[*stalledError](err); ok {
		return t.narrow(ctx, c.segment, stalled, path)
	}
	return c, err
}

// narrow returns a connection with segments that pass. full is the segment size of a connection that stalled.
func (t Target) narrow(ctx context.Context, full int, stalled *stalledError, path *answer.Path) (*connection, error) {
	bounded, cancel := context.WithTimeout(ctx, SearchTime)
	defer cancel()
	passes := func(segment int) bool {
		c, err := t.exchange(bounded, segment, &answer.Path{})
		c.drop()
		return err == nil
	}
	largest, dropped := search(bounded, full, passes)
	switch {
	case largest == 0: // small packets do not pass either
		return nil, stalled
	case passes(dropped): // it was not the size: a lossy path may stall once
		return t.exchange(ctx, 0, path)
	}
	c, err := t.exchange(ctx, largest, path)
	path.MaxSegment, path.There.Dropped, path.Back.Dropped = largest, stalled.there, !stalled.there
	return c, err
}

// Throughput returns the bits per second that one connection carried to the gateway for two seconds, with segments of at
// most maxSegment bytes.
func (t Target) Throughput(ctx context.Context, maxSegment int) (float64, error) {
	c, err := t.open(ctx, maxSegment)
	defer c.drop()
	if err != nil {
		return 0, err
	}
	var stream *hbone.Stream
	if err := c.stage(ctx, func(ctx context.Context) (err error) {
		stream, _, err = c.session.Open(ctx, &hbone.Request{Authority: header.SinkAuthority})
		return err
	}); err != nil {
		return 0, err
	}
	before, ok := tcp.InfoOf(c.conn)
	if !ok {
		return 0, errors.New("the connection is not of this kernel: its throughput is not known")
	}
	began := time.Now()
	stream.SetWriteDeadline(began.Add(flowTime))
	defer context.AfterFunc(ctx, c.drop)()
	for chunk := make([]byte, 64<<10); time.Since(began) < flowTime && ctx.Err() == nil; {
		if _, err = stream.Write(chunk); err != nil {
			break
		}
	}
	took := time.Since(began)
	after, ok := tcp.InfoOf(c.conn)
	if took < flowTime/2 || !ok { // by no deadline
		return 0, fmt.Errorf("the connection ended after %v: %w", took.Round(time.Millisecond), errors.Join(err, context.Cause(ctx)))
	}
	return 8 * float64(after.BytesAcked-before.BytesAcked) / took.Seconds(), nil
}

// stalledError is an exchange without a response in time, after TCP connected.
type stalledError struct {
	there bool // the peer did not acknowledge the request. Otherwise the response was lost
	err   error
}

func (e *stalledError) Error() string { return "TCP connects, no response in time: " + e.err.Error() }
func (e *stalledError) Unwrap() error { return e.err }

// connection is a session of a check.
type connection struct {
	conn     net.Conn
	session  *hbone.Session // nil until it is open
	patience time.Duration  // for one exchange
	segment  int            // largest that TCP sends, as both ends announced it
	headers  int            // bytes of an IP and a TCP header
}

// open returns a connection that serves, or as much of it as there is beside an error: nil if TCP did not connect.
func (t Target) open(ctx context.Context, maxSegment int) (*connection, error) {
	conn, err := t.Dial(ctx, maxSegment)
	if err != nil {
		return nil, err
	}
	i, _ := tcp.InfoOf(conn)
	c := &connection{conn: conn, patience: time.Second + 4*i.RTT, segment: i.MaxSegment, headers: 40}
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok && a.IP.To4() == nil {
		c.headers = 60
	}
	var transport *hbone.TLSTransport
	if err := c.stage(ctx, func(ctx context.Context) (err error) {
		transport, err = t.TLS(ctx, conn)
		return err
	}); err != nil {
		return c, err
	}
	cfg := hbone.DefaultConfig()
	cfg.MaxHeaderList, cfg.PingEvery = 64<<10, -1
	return c, c.stage(ctx, func(ctx context.Context) (err error) {
		c.session, err = hbone.NewClient(ctx, transport, cfg)
		return err
	})
}

// drop closes the connection with a RST: the kernel sends nothing more of it.
func (c *connection) drop() {
	if c == nil {
		return
	}
	if l, ok := c.conn.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(0)
	}
	c.conn.Close()
	if c.session != nil {
		c.session.Close(nil)
	}
}

// stage runs f for at most c.patience. If it is over, the error is a *stalledError.
func (c *connection) stage(ctx context.Context, f func(context.Context) error) error {
	var unacked atomic.Bool
	look := time.AfterFunc(c.patience*3/4, func() { // later f may close the connection
		i, _ := tcp.InfoOf(c.conn)
		unacked.Store(i.Unacked > 0)
	})
	defer look.Stop()
	bounded, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return &stalledError{unacked.Load(), err}
	}
	return err
}

// connect sends a CONNECT of a check and returns the header of its response.
func (c *connection) connect(ctx context.Context, h hbone.Header) (hbone.Header, error) {
	stream, _, err := c.session.Open(ctx, &hbone.Request{Authority: header.CheckAuthority, Header: h})
	if err == nil {
		stream.Close()
		return nil, fmt.Errorf("it opens a tunnel to %s: it is not a gateway of this mesh", header.CheckAuthority)
	}
	if status, ok := errors.AsType[*hbone.StatusError](err); ok && status.Status == http.StatusNotFound {
		return status.Header, nil
	}
	return nil, err
}

// exchange opens a connection and sends full-size packets there and back. It notes in path which ones passed. Beside an
// error it returns what open returns.
func (t Target) exchange(ctx context.Context, maxSegment int, path *answer.Path) (*connection, error) {
	c, err := t.open(ctx, maxSegment)
	if err != nil {
		c.drop()
		return c, err
	}
	size := min(2*cmp.Or(c.segment, 1460), header.MaxEcho)
	bytes := strings.Repeat("~", size) // HPACK has no shorter code for it
	var back hbone.Header
	for _, name := range []string{header.NamePadding, header.NameEcho} {
		if err := c.stage(ctx, func(ctx context.Context) (err error) {
			back, err = c.connect(ctx, hbone.Header{name: bytes})
			return err
		}); err != nil {
			if stalled, ok := err.(*stalledError); ok {
				stalled.there = name == header.NamePadding
			}
			c.drop()
			return c, err
		}
	}
	i, _ := tcp.InfoOf(c.conn)
	path.There.PacketBytes = min(i.MaxSegment, size) + c.headers
	if sent, ok := header.ParseSent(back.Get(header.NameSent)); ok && len(back.Get(header.NameEcho)) == size {
		path.Back.PacketBytes = min(sent.MaxSegment, size) + c.headers
	}
	return c, nil
}

// sample measures round trips and losses by many small exchanges.
func (c *connection) sample(ctx context.Context, path *answer.Path) {
	ctx, cancel := context.WithTimeout(ctx, exchanges*exchangePause+2*c.patience)
	defer cancel()
	trips := make([]time.Duration, exchanges)
	var all sync.WaitGroup
	tick := time.NewTicker(exchangePause)
	defer tick.Stop()
	for i := range trips {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		all.Go(func() {
			began := time.Now()
			if _, err := c.connect(ctx, nil); err == nil {
				trips[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	trips = slices.DeleteFunc(trips, func(d time.Duration) bool { return d == 0 })
	last, err := c.connect(ctx, nil)
	if i, ok := tcp.InfoOf(c.conn); ok {
		path.Congestion, path.RTTMS = i.Congestion, float64(i.RTT)/1e6
		path.There.Segments, path.There.Lost = i.Segments, i.Lost()
	}
	if sent, ok := header.ParseSent(last.Get(header.NameSent)); ok {
		path.Back.Segments, path.Back.Lost = sent.Segments, sent.Lost
	}
	if path.Exchanges = len(trips); err != nil || len(trips) < exchanges {
		path.Note = fmt.Sprintf("%d of %d exchanges got a response in time", len(trips), exchanges)
	}
	if len(trips) == 0 {
		return
	}
	for i := range trips[1:] {
		path.JitterMS += math.Abs(float64(trips[i+1]-trips[i])) / 1e6 / float64(len(trips)-1)
	}
}
