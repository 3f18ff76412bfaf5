package hbone

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"golang.org/x/net/http2"
)

// Session is one HTTP/2 connection of CONNECT streams, client or server. All
// methods are safe for concurrent use.
//
// Goroutines: one reads, for as long as the session lives. Nothing else is
// permanent: whoever writes finds the transport free and uses it, or leaves the
// frames in the queue for the one who does; timers drive the pings.
//
// State and locks:
//   - recv belongs to the reading goroutine alone;
//   - mu guards the sender, the lifecycle, the table of streams and the sending
//     half of each of them. A method whose name ends in Locked is called with it
//     held, as are all methods of sender, queue, sendHalf, pinger and liveness;
//   - the receiving half of a stream has a lock of its own. Neither it nor mu is
//     taken while the other is held, and neither is held while the transport or an
//     application is used. Methods of recvHalf that end in Locked mean that lock;
//   - window has the innermost lock, path is atomic.
type Session struct {
	t        Transport
	cfg      Config
	client   bool
	handler  Handler
	declined string // why nothing is served, empty: it is
	peerID   Peer
	parent   *Session // that of the stream this one runs in; nil on a connection
	chunk    int      // largest payload of one write, in bytes
	fewCPUs  bool     // there are but few processors: see flow.Inline

	recv   receiver
	window connWindow
	path   path

	mu       sync.Mutex
	life     lifecycle
	send     sender
	streams  map[uint32]*Stream
	nextID   uint32 // client: next stream to open
	lastID   uint32 // server: highest stream seen
	peer     wire.Settings
	ping     pinger
	alive    flow.Liveness
	observer observer
	bulk     flow.Bulk
	running  int // handlers that have not returned

	handlers       sync.WaitGroup
	base           context.Context
	settingsSentAt time.Time
	number         uint64       // in traces
	use            *memory.Use  // what the session sends and reads with
	writing        atomic.Int64 // since when a write waits for the transport, in nanoseconds of Unix time; 0: none does
	notice         atomic.Int32 // noticeNothing and so on; see silence.go
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
		t: t, cfg: cfg, client: client, peerID: t.Peer(), parent: parentOf(t),
		streams: make(map[uint32]*Stream), nextID: 1, peer: wire.DefaultSettings(),
	}
	s.number = sessionNumber.Add(1)
	s.fewCPUs = runtime.GOMAXPROCS(0) <= flow.FewCPUs && s.parent == nil && !cfg.Disable.FewCPUs
	s.path.off = cfg.Disable.Interactive
	s.send.turnsOnly = cfg.Disable.SmallFirst
	s.chunk = maxPayload
	if s.parent != nil {
		s.chunk = innerPayload
	}
	if _, ok := t.(*Pipe); ok {
		s.cfg.StreamWindow = min(s.cfg.StreamWindow, pipeWindow)
		s.cfg.FirstWindow = min(s.cfg.FirstWindow, pipeWindow)
	}
	now := time.Now()
	s.alive.LastAnswer = now // in the handshake
	s.life.init(&s.mu, now)
	s.window.init(cfg.ConnWindow)
	s.send.init(client)
	if s.cfg.Owner == "" {
		s.cfg.Owner = s.peerID.ID.String()
	}
	s.use = cfg.Memory.Open(s.cfg.Owner, memory.Session, s.resetIfStuck)
	s.send.data.use = s.use
	if t, ok := t.(*TLSTransport); ok {
		t.rec.charge(s.use)
	}
	s.recv.frames = newFrameReader(s)
	return s
}

// Peer is who answered the handshake.
func (s *Session) Peer() Peer { return s.peerID }

// LocalAddr and RemoteAddr are those of the transport.
func (s *Session) LocalAddr() net.Addr  { return s.t.LocalAddr() }
func (s *Session) RemoteAddr() net.Addr { return s.t.RemoteAddr() }

// Done is closed when the session has ended; Err then says why.
func (s *Session) Done() <-chan struct{} { return s.life.done }

// Closed is closed when the session has ended and its transport is closed: nothing
// is left to be written.
func (s *Session) Closed() <-chan struct{} { return s.life.transportClosed }

// Err is nil while the session lives. After Close(nil) it is ErrSessionClosed.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life.err
}

// Held is how many bytes of DATA the peer has sent that nobody has taken yet: what
// its connection window is short of. Without streams it is zero.
func (s *Session) Held() int { return s.window.holds() }

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
	return s.canOpenLocked() == nil
}

// Close ends the session: queued frames are written (for at most CloseTimeout if
// streams are open, FlushTimeout if all have ended), then GOAWAY, then the transport
// is closed; open streams end with cause. A nil cause is ErrSessionClosed. It does
// not wait: Done is closed on return, Closed a little later.
func (s *Session) Close(cause error) {
	if cause == nil {
		cause = ErrSessionClosed
	}
	s.end(cause, http2.ErrCodeNo, endOrderly)
}

// GoAway ends the session at once with GOAWAY(code), whose debug data is why.
func (s *Session) GoAway(code http2.ErrCode, why string) {
	s.fail(&ProtocolError{Code: code, Reason: why})
}

// CloseWhenIdle opens no stream any more and closes the session when the last
// one has ended, at once if there is none.
func (s *Session) CloseWhenIdle() {
	s.mu.Lock()
	s.life.draining, s.life.closeWhenIdle = true, true
	s.notifyObserver()
	idle := len(s.streams) == 0
	s.mu.Unlock()
	if idle {
		s.Close(nil)
	}
	s.drainChildren()
}

// retired reports that the session will never open a stream again, or that the
// one that carries it will not: what hangs on that is to go elsewhere too.
func (s *Session) retired() bool {
	if s.parent != nil && s.parent.retired() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retiredLocked()
}

// retiredLocked is retired without the parent.
func (s *Session) retiredLocked() bool {
	return s.life.err != nil || s.life.draining || s.nextID > wire.MaxStreamID
}

// fail ends the session for err, telling the peer when it is the peer's fault.
func (s *Session) fail(err error) {
	var pe *ProtocolError
	if errors.As(err, &pe) {
		s.end(err, pe.Code, endWithError)
		return
	}
	s.end(err, http2.ErrCodeNo, endAbrupt)
}

type ending uint8

const (
	endOrderly   ending = iota // flush what is queued, then GOAWAY
	endWithError               // GOAWAY, and nothing else
	endAbrupt                  // the transport is broken or the peer is gone
)

func (s *Session) end(err error, code http2.ErrCode, how ending) {
	s.mu.Lock()
	if s.life.err != nil {
		s.mu.Unlock()
		return
	}
	s.life.err = err
	s.ping.stop()
	s.stopSettingsTimerLocked()
	s.stopExpiryLocked()
	streams := s.streams
	s.streams = nil
	s.life.closeBy = s.closeLimitLocked(streams)
	for _, st := range streams {
		st.stopSendingLocked(err)
	}
	last := min(s.lastID, s.life.finalID)
	if how != endAbrupt { // a server may end before Serve
		s.greetLocked()
	}
	switch how {
	case endOrderly:
		s.send.data.addData(nil, wire.AppendGoAway(nil, last, code, ""), 0)
	case endWithError:
		s.send.data.clear()
		s.send.control.add(nil, wire.AppendGoAway(nil, last, code, debugText(err)), 0)
		s.t.SetReadDeadline(time.Now().Add(lingerTime))
	case endAbrupt:
		s.send.broken = true
	}
	close(s.life.done)
	s.life.changed.Broadcast()
	s.notifyObserver()
	s.mu.Unlock()
	for _, st := range streams {
		st.failed(err)
	}
	s.leaveParent()
	go s.teardown(how)
}

// closeLimitLocked is until when a session with these streams may try to write what
// is queued, and wait for its peer to have it.
func (s *Session) closeLimitLocked(streams map[uint32]*Stream) time.Time {
	now := time.Now()
	for _, st := range streams {
		if !st.send.ended || !st.endReceived { // cut off
			return now.Add(s.cfg.CloseTimeout)
		}
	}
	used := s.lastID > 0 || s.nextID > 1
	if !used || len(streams) == 0 && s.send.empty() && now.Sub(s.life.idleSince) >= s.cfg.FlushTimeout {
		return now.Add(s.cfg.CloseTimeout) // what was written last has long gone
	}
	return now.Add(s.cfg.FlushTimeout)
}

// hasten closes the session, also one that is ending already: from now on that takes
// CloseTimeout at most.
func (s *Session) hasten(cause error) {
	s.Close(cause)
	limit := time.Now().Add(s.cfg.CloseTimeout)
	s.mu.Lock()
	if s.life.closeBy.Before(limit) {
		s.mu.Unlock()
		return
	}
	s.life.closeBy = limit
	s.mu.Unlock()
	s.setDeadline(Transport.SetWriteDeadline)
	s.setDeadline(Transport.SetReadDeadline)
}

// setDeadline sets closeBy, which hasten may change meanwhile.
func (s *Session) setDeadline(set func(Transport, time.Time) error) {
	for {
		s.mu.Lock()
		limit := s.life.closeBy
		s.mu.Unlock()
		set(s.t, limit)
		s.mu.Lock()
		same := s.life.closeBy.Equal(limit)
		s.mu.Unlock()
		if same {
			return
		}
	}
}

func (s *Session) stopSettingsTimerLocked() {
	if s.life.settingsTimer != nil {
		s.life.settingsTimer.Stop()
	}
}

func debugText(err error) string {
	text := err.Error()
	return text[:min(len(text), 128)]
}

// teardown writes what is left and closes the transport. A TCP connection that is
// closed with bytes unread, or that receives some afterwards, is reset, and what its
// peer has not received by then is lost: so after an orderly end our half is closed
// first, and the rest when the peer has closed its own or closeBy is reached.
func (s *Session) teardown(how ending) {
	s.setDeadline(Transport.SetWriteDeadline)
	s.mu.Lock()
	for !s.send.broken && (s.send.busy || !s.send.empty()) {
		s.kickLocked()
		s.life.changed.Wait()
	}
	broken := s.send.broken
	s.send.broken = true // nothing goes out any more
	s.mu.Unlock()
	s.closeTransport(broken, how)
	s.use.Close()
	close(s.life.transportClosed)
}

func (s *Session) closeTransport(broken bool, how ending) {
	if a, ok := s.t.(interface{ abort() }); ok && broken {
		a.abort() // and no closing alert: it would wait for the write that hangs
		return
	}
	half, _ := s.t.(halfCloser)
	switch {
	case broken:
	case how == endWithError:
		<-s.life.readDone
	case half != nil && half.closeWrite() == nil:
		s.setDeadline(Transport.SetReadDeadline)
		<-s.life.readDone
	}
	s.t.Close()
}
