package quic

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// PacketSize is the size of the largest packets, in bytes without headers of UDP and IP: the least of RFC 9000 §14. Path MTU
// discovery of quic-go finds larger ones, but never returns to smaller ones. A path with a smaller MTU then loses all of
// them, also if ICMP reports it.
const PacketSize = 1200

const (
	// idleTimeout closes a connection on which nothing is received. Sessions send a PING every
	// 10 s and fail after 20 s, so that only a peer without our PING needs keepAlive.
	idleTimeout = 30 * time.Second
	keepAlive   = 15 * time.Second
	// goodbyeWithin bounds the wait for the peer to have received everything.
	goodbyeWithin = 10 * time.Second
	// lingerTime is the shortest wait for a packet of the peer.
	lingerTime = time.Second
	// maxUnsent bounds what waits to be sent on the control stream.
	maxUnsent = 16 << 10

	// Windows without a memory budget.
	maxFirstWindow  = 256 << 10
	maxStreamWindow = 4 << 20
	maxConnWindow   = 64 << 20
	// connShare is the part of the budget that the window of one connection is: an eighth.
	connShare     = 8
	minConnWindow = 4 << 20

	maxUniStreams = 8

	// maxIdleFrames bounds frames of the peer's control stream in a second, as over HTTP/2. Withdrawals are bounded
	// by the CONNECTs.
	maxIdleFrames = 1000
)

// windows are how many bytes a peer may send ahead of the session: on a stream at first and at most, and on a connection. Package memory
// does not count these bytes while they wait for a lost packet, nor what quic-go holds beside each.
type windows struct{ first, stream, conn int64 }

// windows returns those for a budget. A session reads on a stream until 256 KiB wait there. The window of a stream grows while it is read
// quickly. 16 streams that are not read leave room for none, as in a session over TCP.
func (m Memory) windows() windows {
	conn := int64(maxConnWindow)
	if size := m.Budget.Size(); size > 0 {
		conn = min(conn, max(minConnWindow, size/connShare))
	}
	return windows{first: min(maxFirstWindow, conn/64), stream: min(maxStreamWindow, conn/16), conn: conn}
}

// config is that of every connection. A negative streams lets the peer open none.
func (m Memory) config(streams int64) *quicgo.Config {
	w := m.windows()
	return &quicgo.Config{
		InitialPacketSize:              PacketSize,
		DisablePathMTUDiscovery:        true,
		MaxIdleTimeout:                 idleTimeout,
		KeepAlivePeriod:                keepAlive,
		InitialStreamReceiveWindow:     uint64(w.first),
		MaxStreamReceiveWindow:         uint64(w.stream),
		InitialConnectionReceiveWindow: uint64(w.conn),
		MaxConnectionReceiveWindow:     uint64(w.conn),
		MaxIncomingStreams:             streams,
		MaxIncomingUniStreams:          maxUniStreams,
	}
}

// Memory bounds the buffers of connections, as hbone.Config.Memory and Owner do. An empty Owner is
// the peer.
type Memory struct {
	Budget *memory.Budget
	Owner  string
}

// conn is one QUIC connection with the control streams of HTTP/3.
type conn struct {
	q          *quicgo.Conn
	memory     Memory
	client     bool
	onGoAway   func(id quicgo.StreamID) // the peer opens or accepts no further requests, and processes none from id on
	onWithdraw func(id quicgo.StreamID) // of a request
	ctrl       *quicgo.SendStream       // belongs to flush
	ready      chan struct{}            // closed when the peer's SETTINGS are in
	bye        chan struct{}            // closed when frameBye was received
	got        map[uint64]bool          // types of the peer's unidirectional streams, guarded by mu
	goAwayID   uint64                   // of the peer's last GOAWAY; belongs to readControl
	idle       wire.Meter               // frames that carry nothing; belongs to readControl

	mu      sync.Mutex
	ours    bool     // it understands our frames
	unsent  []byte   // for the control stream
	sending bool     // flush runs, or open was not called
	pings   []func() // send the answers to PINGs that were passed on, in order
}

func newConn(q *quicgo.Conn, client bool, m Memory) *conn {
	if m.Owner == "" {
		m.Owner = hbone.PeerOf(q.ConnectionState().TLS).ID.String()
	}
	return &conn{q: q, client: client, memory: m, ready: make(chan struct{}), bye: make(chan struct{}), got: map[uint64]bool{}, goAwayID: quicvarint.Max, sending: true}
}

// open opens our control stream. Frames given to control before follow SETTINGS.
func (c *conn) open() error {
	ctrl, err := c.q.OpenUniStream()
	if err != nil {
		return err
	}
	settings := quicvarint.Append(nil, settingMaxFieldSection)
	settings = quicvarint.Append(settings, maxHeaderBlock)
	settings = quicvarint.Append(settings, settingOurs)
	settings = quicvarint.Append(settings, 1)
	c.mu.Lock()
	c.ctrl = ctrl
	c.unsent = append(appendFrame([]byte{streamControl}, frameSettings, settings...), c.unsent...)
	c.mu.Unlock()
	go c.flush()
	return nil
}

// acceptUni reads the control streams of the peer until the connection closes.
func (c *conn) acceptUni() {
	for {
		s, err := c.q.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		go func() {
			err := c.readUni(s)
			var v *violation
			if errors.As(err, &v) {
				c.close(v.code, v.text)
			}
		}()
	}
}

// readUni reads one unidirectional stream of the peer.
func (c *conn) readUni(s *quicgo.ReceiveStream) error {
	f := newFrames(s)
	kind, err := quicvarint.Read(f.r)
	if err != nil {
		return err
	}
	switch kind {
	case streamControl, streamQPACKEncoder, streamQPACKDecoder:
	case streamPush:
		if c.client {
			return broke(codeID, "push stream")
		}
		return broke(codeStreamCreation, "push stream of a client")
	default:
		s.CancelRead(codeStreamCreation)
		return nil
	}
	c.mu.Lock()
	twice := c.got[kind]
	c.got[kind] = true
	c.mu.Unlock()
	if twice {
		return broke(codeStreamCreation, "second stream of type %#x", kind)
	}
	if kind == streamControl {
		err = c.readControl(f)
	} else {
		_, err = io.Copy(io.Discard, f.r) // we have no dynamic table
	}
	_, reset := cancelled(err)
	if err == nil || err == io.EOF || reset {
		return broke(codeClosedCriticalStream, "stream of type %#x is closed", kind)
	}
	return err
}

func (c *conn) readControl(f *frames) error {
	kind, err := f.next()
	if err != nil {
		return err
	}
	if kind != frameSettings {
		return broke(codeMissingSettings, "first frame of the control stream is %#x", kind)
	}
	b, err := f.whole(maxControlFrame)
	if err != nil {
		return err
	}
	if err := c.takeSettings(b); err != nil {
		return err
	}
	for {
		kind, err := f.next()
		if err != nil {
			return err
		}
		if kind != frameWithdraw && c.idle.Add(time.Now(), 1) > maxIdleFrames {
			return broke(codeExcessiveLoad, "too many frames that carry nothing, at last of type %#x", kind)
		}
		switch kind {
		case frameGoAway, framePing, framePong, frameWithdraw, frameBye:
			b, err := f.whole(maxControlFrame)
			if err != nil {
				return err
			}
			if err := c.take(kind, b); err != nil {
				return err
			}
		case frameData, frameHeaders, frameSettings, framePushPromise, 0x2, 0x6, 0x8, 0x9:
			return broke(codeFrameUnexpected, "frame of type %#x on the control stream", kind)
		case frameCancelPush:
			return broke(codeID, "CANCEL_PUSH of no push")
		default:
			if c.client && kind == frameMaxPushID {
				return broke(codeFrameUnexpected, "MAX_PUSH_ID of a server")
			}
			if err := f.skip(); err != nil {
				return err
			}
		}
	}
}

func (c *conn) takeSettings(b []byte) error {
	got := map[uint64]bool{}
	for len(b) > 0 {
		id, n, err := quicvarint.Parse(b)
		if err == nil {
			b = b[n:]
			_, n, err = quicvarint.Parse(b)
		}
		if err != nil {
			return broke(codeFrame, "malformed SETTINGS")
		}
		b = b[n:]
		if got[id] || 0x2 <= id && id <= 0x5 { // RFC 9114 §7.2.4.1
			return broke(codeSettings, "setting %#x is reserved, or repeated", id)
		}
		got[id] = true
	}
	ours := got[settingOurs]
	c.mu.Lock()
	c.ours = ours
	close(c.ready)
	var answer []func()
	if !ours { // nothing that was sent will be answered
		answer, c.pings = c.pings, nil
	}
	c.mu.Unlock()
	for _, f := range answer {
		f()
	}
	return nil
}

// take handles a frame of the control stream behind SETTINGS.
func (c *conn) take(kind uint64, b []byte) error {
	switch kind {
	case framePing:
		c.control(appendFrame(nil, framePong, b[:min(len(b), 8)]...))
	case framePong:
		c.mu.Lock()
		var answer func()
		if len(c.pings) > 0 {
			answer, c.pings = c.pings[0], c.pings[1:]
		}
		c.mu.Unlock()
		if answer != nil {
			answer()
		}
	case frameGoAway:
		id, n, err := quicvarint.Parse(b)
		switch {
		case err != nil || n < len(b):
			return broke(codeFrame, "malformed GOAWAY")
		case id > c.goAwayID, c.client && id%4 != 0: // RFC 9114 §5.2
			return broke(codeID, "GOAWAY with ID %d", id)
		}
		c.goAwayID = id
		c.onGoAway(quicgo.StreamID(id))
	case frameBye:
		select {
		case <-c.bye:
			return broke(codeFrameUnexpected, "second BYE")
		default:
			close(c.bye)
		}
		c.onGoAway(quicgo.StreamID(c.goAwayID))
	case frameWithdraw:
		id, _, err := quicvarint.Parse(b)
		if err != nil {
			return broke(codeFrame, "malformed withdrawal")
		}
		if c.onWithdraw != nil {
			c.onWithdraw(quicgo.StreamID(id))
		}
	}
	return nil
}

// control sends b on the control stream, and does not wait for that.
func (c *conn) control(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsent = append(c.unsent, b...)
	switch {
	case len(c.unsent) > maxUnsent:
		go c.close(codeExcessiveLoad, "peer provokes answers and does not read them")
	case !c.sending:
		c.sending = true
		go c.flush()
	}
}

func (c *conn) flush() {
	for {
		c.mu.Lock()
		b := c.unsent
		c.unsent = nil
		if len(b) == 0 {
			c.sending = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if _, err := c.ctrl.Write(b); err != nil {
			return // with the connection, for which nothing is left to be sent
		}
	}
}

// passPing passes a PING of the session on to the peer. A peer that does not understand it is
// watched by QUIC alone.
func (c *conn) passPing(answer func()) {
	c.mu.Lock()
	select {
	case <-c.ready:
		if !c.ours {
			c.mu.Unlock()
			answer()
			return
		}
	default:
	}
	c.pings = append(c.pings, answer)
	c.mu.Unlock()
	c.control(appendFrame(nil, framePing, make([]byte, 8)...))
}

// goodbye closes the connection once the peer has received all data. The session and all
// exchanges are complete. quic-go 0.65 does not report acknowledgements: the context of a stream ends with Close.
// It sends again what is not acknowledged. So a peer without frameBye has received everything when nothing is sent.
func (c *conn) goodbye() {
	ours := c.isOurs()
	if ours {
		c.control(appendFrame(nil, frameBye))
	}
	overdue := time.After(goodbyeWithin)
	for {
		before := c.q.ConnectionStats().BytesSent
		var quiet <-chan time.Time
		if !ours {
			quiet = time.After(2 * c.answerWithin())
		}
		select {
		case <-quiet:
			if c.q.ConnectionStats().BytesSent > before {
				continue
			}
		case <-c.bye:
		case <-overdue:
		case <-c.q.Context().Done():
		}
		c.close(codeNoError, "")
		return
	}
}

// answerWithin returns how long to wait for an acknowledgement of the peer: three probe timeouts (RFC 9002 §6.2.1), and
// lingerTime at least. Two packets may be lost meanwhile.
func (c *conn) answerWithin() time.Duration {
	s := c.q.ConnectionStats()
	return max(lingerTime, 3*(s.SmoothedRTT+4*s.MeanDeviation))
}

// isOurs reports whether the peer understands our frames. Its SETTINGS may arrive behind its first request, so isOurs waits for
// them, for answerWithin at most.
func (c *conn) isOurs() bool {
	select {
	case <-c.ready:
	case <-c.q.Context().Done():
	case <-time.After(c.answerWithin()):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ours
}

// violated resets qs for a stream error, and closes the connection for a connection error.
func (c *conn) violated(v *violation, qs *quicgo.Stream) {
	if v.streamError() {
		abort(qs, quicgo.StreamErrorCode(v.code))
	} else {
		c.close(v.code, v.text)
	}
}

func (c *conn) close(code uint64, text string) {
	c.q.CloseWithError(quicgo.ApplicationErrorCode(code), text)
}

// lost returns the error that closed the connection, nil if one side closed it in order, or this side with its session. A
// violation by the peer is a ProtocolError.
func (c *conn) lost() error {
	cause := context.Cause(c.q.Context())
	var app *quicgo.ApplicationError
	switch {
	case !errors.As(cause, &app):
		return withAlert(cause)
	case app.ErrorCode == codeNoError, !app.Remote && app.ErrorCode == codeInternal:
		return nil
	case !app.Remote:
		return &hbone.ProtocolError{Code: toH2(app.ErrorCode), Reason: "HTTP/3: " + app.ErrorMessage}
	}
	return cause
}

// down reports that the QUIC connection is closed.
func (c *conn) down() bool { return c.q.Context().Err() != nil }
