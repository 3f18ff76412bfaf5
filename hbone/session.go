package hbone

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

// Session is one HTTP/2 connection of CONNECT streams, client or server. All
// methods are safe for concurrent use.
//
// Goroutines: one reads, for as long as the session lives. Nothing else is
// permanent: whoever writes finds the transport free and uses it, or leaves the
// frames in the queue for the one who does; timers drive the pings.
//
// Locks: mu guards everything about sending, the stream table and the life of
// the session. A stream's own lock guards what it has received. Neither is
// taken while the other is held, and none while the transport is used.
type Session struct {
	t       Transport
	cfg     Config
	client  bool
	handler Handler
	peerID  Peer
	carrier *Session // that of the stream this one runs in; nil on a connection
	chunk   int      // largest payload of one write, in bytes
	few     bool     // there are but few processors: see inlineBulk

	reader  *frameReader
	inbox   inbox         // of the reading goroutine
	abuse   meter         // of the reading goroutine
	resets  meter         // of the reading goroutine
	settled chan struct{} // closed when the peer's SETTINGS are in
	done    chan struct{} // closed when the session has ended
	torn    chan struct{} // closed when the transport is closed
	deaf    chan struct{} // closed when nobody reads any more

	mu        sync.Mutex
	changed   sync.Cond // on mu: streams ended, writer idle, ping answered, session ended
	err       error     // why the session ended
	streams   map[uint32]*Stream
	nextID    uint32 // client: next stream to open
	lastID    uint32 // server: highest stream seen
	peer      peerSettings
	goAway    *GoAwayError // received
	goAwayID  uint32       // last stream the peer will serve
	draining  bool         // no new streams from us
	finalID   uint32       // server: last stream we serve, once drained; maxStreamID before
	whenIdle  bool         // close when the last stream ends
	idleSince time.Time
	ping      pinger
	alive     liveness
	observer  observer
	overdue   *time.Timer           // ends the session if the peer does not settle
	carried   map[*Session]struct{} // sessions inside streams of this one
	w         writer
	bulk      bulkMeter

	began   time.Time    // when our SETTINGS were sent
	rtt     atomic.Int64 // in nanoseconds, 0: not known; see tookRTT
	hearing atomic.Int32 // hearingIdle and so on; see silence.go
	company atomic.Int64 // when small messages were last received, in nanoseconds since 1970

	recv    connWindow // has its own lock
	recvLow bool       // the peer has used up most of it; of the reading goroutine

	handlers sync.WaitGroup
	running  int // handlers not returned, guarded by mu
	base     context.Context
}

func newSession(t Transport, cfg Config, client bool) *Session {
	cfg = cfg.withDefaults()
	if cfg.MaxHeaderList == 0 {
		cfg.MaxHeaderList = serverHeaderMax
		if client {
			cfg.MaxHeaderList = clientHeaderMax
		}
	}
	s := &Session{
		t: t, cfg: cfg, client: client, peerID: t.Peer(), carrier: carrierOf(t),
		settled: make(chan struct{}), done: make(chan struct{}), torn: make(chan struct{}), deaf: make(chan struct{}),
		streams: make(map[uint32]*Stream), nextID: 1, finalID: maxStreamID, goAwayID: maxStreamID,
		peer: defaultPeerSettings(), idleSince: time.Now(),
	}
	s.few = runtime.GOMAXPROCS(0) <= fewProcessors && s.carrier == nil
	s.chunk = maxPayload
	if s.carrier != nil {
		s.chunk = innerPayload
	}
	s.alive.heard = s.idleSince // in the handshake
	s.recv.init(cfg.ConnWindow)
	s.changed.L = &s.mu
	s.w.init(client)
	s.reader = newFrameReader(s)
	return s
}

// Peer is who answered the handshake.
func (s *Session) Peer() Peer { return s.peerID }

// LocalAddr and RemoteAddr are those of the transport.
func (s *Session) LocalAddr() net.Addr  { return s.t.LocalAddr() }
func (s *Session) RemoteAddr() net.Addr { return s.t.RemoteAddr() }

// Done is closed when the session has ended; Err then says why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is nil while the session lives. After Close(nil) it is ErrSessionClosed.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Streams is how many streams are open.
func (s *Session) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// CanOpen reports whether Open would find a free stream now.
func (s *Session) CanOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.canOpen() == nil
}

// Close ends the session: queued frames are written (for at most CloseTimeout),
// then GOAWAY, then the transport is closed; open streams end with cause. A nil
// cause is ErrSessionClosed. It does not wait: Done is closed on return, the
// transport a little later.
func (s *Session) Close(cause error) {
	if cause == nil {
		cause = ErrSessionClosed
	}
	s.end(cause, http2.ErrCodeNo, endOrderly)
}

// CloseWhenIdle opens no stream any more and closes the session when the last
// one has ended, at once if there is none.
func (s *Session) CloseWhenIdle() {
	s.mu.Lock()
	s.draining, s.whenIdle = true, true
	s.tellChanged()
	idle := len(s.streams) == 0
	s.mu.Unlock()
	if idle {
		s.Close(nil)
	}
	s.unload()
}

// retired reports that the session will never open a stream again, or that the
// one that carries it will not: what hangs on that is to go elsewhere too.
func (s *Session) retired() bool {
	if s.carrier != nil && s.carrier.retired() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retiredLocked()
}

// retiredLocked is retired without the carrier. Called with mu held.
func (s *Session) retiredLocked() bool {
	return s.err != nil || s.draining || s.nextID > maxStreamID
}

// fail ends the session for err, telling the peer when it is the peer's fault.
func (s *Session) fail(err error) {
	var pe *ProtocolError
	if errors.As(err, &pe) {
		s.end(err, pe.Code, endFault)
		return
	}
	s.end(err, http2.ErrCodeNo, endAbrupt)
}

type ending uint8

const (
	endOrderly ending = iota // flush what is queued, then GOAWAY
	endFault                 // GOAWAY, and nothing else
	endAbrupt                // the transport is broken or the peer is gone
)

func (s *Session) end(err error, code http2.ErrCode, how ending) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	s.ping.stop()
	s.stopOverdue()
	streams := s.streams
	s.streams = nil
	for _, st := range streams {
		st.deadLocked(err)
	}
	last := min(s.lastID, s.finalID)
	switch how {
	case endOrderly:
		s.w.data.addData(nil, appendGoAway(nil, last, code, ""), 0)
	case endFault:
		s.w.data.clear()
		s.w.control.add(nil, appendGoAway(nil, last, code, debugText(err)), 0)
		s.t.SetReadDeadline(time.Now().Add(lingerTime))
	case endAbrupt:
		s.w.broken = true
	}
	close(s.done)
	s.changed.Broadcast()
	s.tellChanged()
	s.mu.Unlock()
	for _, st := range streams {
		st.failed(err)
	}
	s.leave()
	go s.teardown(how == endFault)
}

func (s *Session) stopOverdue() {
	if s.overdue != nil {
		s.overdue.Stop()
	}
}

func debugText(err error) string {
	text := err.Error()
	return text[:min(len(text), 128)]
}

// teardown writes what is left and closes the transport.
func (s *Session) teardown(linger bool) {
	s.t.SetWriteDeadline(time.Now().Add(s.cfg.CloseTimeout))
	s.mu.Lock()
	for !s.w.broken && (s.w.busy || !s.w.empty()) {
		s.kick()
		s.changed.Wait()
	}
	broken := s.w.broken
	s.mu.Unlock()
	if a, ok := s.t.(interface{ abort() }); ok && broken {
		a.abort()
	} else if linger && !broken {
		<-s.deaf
	}
	s.t.Close()
	close(s.torn)
}
