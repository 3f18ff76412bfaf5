package hbone

import (
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"github.com/isthmus-mesh/isthmus/internal/memory"
)

// Config holds the limits and deadlines of a session. The zero value is not
// usable; start from [DefaultConfig]. A zero field takes its default.
type Config struct {
	// StreamWindow and ConnWindow are how many bytes a peer may send ahead of
	// the application, per stream and per session. Defaults 4 MiB and 16 MiB:
	// the ratio 1:4 keeps applications alive that refuse to read one stream
	// until another one delivers (ztunnel #1538). A stream starts with
	// FirstWindow, default 1 MiB, grows with its first credit, and has less
	// while small messages pass beside it on a short path.
	StreamWindow int
	ConnWindow   int
	FirstWindow  int

	// MaxFrame is the largest frame payload that we accept, in bytes, at least
	// 16384. Default 65536: four TLS records; more brings nothing and makes
	// some peers allocate buffers of that size per stream.
	MaxFrame int

	// MaxStreams is, on a server, how many streams may be open at once (sent as
	// MAX_CONCURRENT_STREAMS; more are refused with REFUSED_STREAM). On a
	// client it bounds the streams of a session whatever the peer allows; zero
	// there means the peer's own limit. Default 200.
	MaxStreams int

	// CancelEnds makes RST_STREAM(CANCEL or NO_ERROR) on a stream that this
	// server has accepted an end like END_STREAM: what came before it is
	// delivered. It is for a relay of tunnels that protect themselves, such as
	// a gateway: a stock client drops the outer stream of a finished inner one,
	// often without END_STREAM. Anywhere else a stream that was cut short would
	// look complete. Default false.
	CancelEnds bool

	// Refused, if set, is told of every CONNECT that a server refuses with
	// REFUSED_STREAM. It runs in the session's own goroutine and must not block.
	Refused func(Refusal)

	// Screen, if set, is given every CONNECT that a server does not refuse by itself, as
	// soon as it has been read and before there is a goroutine for it. It returns the
	// handler, or nil after it has refused. It runs in the session's own goroutine and
	// must not block.
	Screen func(*Incoming) Handler

	// MaxHeaderList bounds the decoded header list, in bytes as RFC 9113
	// §6.5.2 counts them. Zero: 16 KiB on a client, 64 KiB on a server.
	MaxHeaderList int

	// Hold, if set, keeps a server from sending anything before it is closed. What clients
	// send is taken in. It is for a session that stands for a peer elsewhere.
	Hold <-chan struct{}

	// AnswerPing, if set, is called with each PING of the peer, and sends its answer by
	// calling answer, instead of the session at once. It is for a session that stands for a
	// peer elsewhere (see Pipe). It runs in the session's own goroutine and must not block.
	AnswerPing func(answer func())

	// Memory bounds what this and all other sessions of the process buffer. Nil: no
	// bound. With a small one FirstWindow is less. Owner is the identity that the
	// session's buffers are charged to. Empty: the peer's.
	Memory *memory.Budget
	Owner  string

	// Disable turns heuristics off, for diagnosis.
	Disable flow.Disable
	// Trace, if not nil, may be turned on to keep the last frames.
	Trace *FrameTrace

	// PingEvery is the pause between the answer to one PING and the next one,
	// PingTimeout how long to wait for an answer before the session is given
	// up. Negative PingEvery: no pings. Defaults 10 s and 20 s.
	PingEvery   time.Duration
	PingTimeout time.Duration

	// NotAfter is when our own certificate expires; zero: not known. From then on,
	// or from when the peer's has expired, the session takes no new stream: it is
	// drained a little earlier. Streams that are open then may go on for
	// ExpiryGrace, after which the session ends with ErrCertificateExpired. Default
	// 24 h, the life of an Istio certificate; negative: no grace.
	NotAfter    time.Time
	ExpiryGrace time.Duration

	// SettingsTimeout bounds the wait for the peer's preface. Default 5 s.
	SettingsTimeout time.Duration
	// ConnectTimeout bounds the wait for the response to a CONNECT. Default 10 s.
	ConnectTimeout time.Duration
	// CloseTimeout bounds how long a session that is closed with streams open tries
	// to write what is queued. Default 2 s.
	CloseTimeout time.Duration
	// FlushTimeout is the same once all streams have ended. What they have written
	// last may still be queued, and counts as sent: their applications will not learn
	// that it was lost. Default 1 min.
	FlushTimeout time.Duration
}

// DefaultConfig returns the values that a stock peer uses, where it has them.
func DefaultConfig() Config { return Config{MaxStreams: 200}.withDefaults() }

func (c Config) withDefaults() Config {
	setInt(&c.StreamWindow, 4<<20)
	setInt(&c.ConnWindow, 16<<20)
	setInt(&c.FirstWindow, 1<<20)
	c.FirstWindow = min(c.Memory.FirstWindow(c.FirstWindow), c.StreamWindow)
	if c.Disable.FirstWindow {
		c.FirstWindow = c.StreamWindow
	}
	setInt(&c.MaxFrame, 64<<10)
	setDuration(&c.PingEvery, 10*time.Second)
	setDuration(&c.PingTimeout, 20*time.Second)
	setDuration(&c.ExpiryGrace, 24*time.Hour)
	setDuration(&c.SettingsTimeout, 5*time.Second)
	setDuration(&c.ConnectTimeout, 10*time.Second)
	setDuration(&c.CloseTimeout, 2*time.Second)
	setDuration(&c.FlushTimeout, time.Minute)
	return c
}

func setInt(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

func setDuration(p *time.Duration, v time.Duration) {
	if *p == 0 {
		*p = v
	}
}

// Validate names the first field that no session can run with.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.StreamWindow < minWindow || c.StreamWindow > wire.MaxWindow:
		return fmt.Errorf("hbone: stream window %d: want %d to %d bytes", c.StreamWindow, minWindow, wire.MaxWindow)
	case c.ConnWindow < wire.DefaultWindow: // what every session begins with
		return fmt.Errorf("hbone: connection window %d: want %d bytes or more", c.ConnWindow, wire.DefaultWindow)
	case c.ConnWindow < c.StreamWindow || c.ConnWindow > wire.MaxWindow:
		return fmt.Errorf("hbone: connection window %d: want stream window %d to %d bytes", c.ConnWindow, c.StreamWindow, wire.MaxWindow)
	case c.FirstWindow < minWindow:
		return fmt.Errorf("hbone: first window %d: want %d bytes or more", c.FirstWindow, minWindow)
	case c.MaxFrame < wire.MinMaxFrame || c.MaxFrame > wire.MaxMaxFrame:
		return fmt.Errorf("hbone: max frame %d: want %d to %d bytes", c.MaxFrame, wire.MinMaxFrame, wire.MaxMaxFrame)
	case c.MaxStreams < 0:
		return fmt.Errorf("hbone: max streams %d: must not be negative", c.MaxStreams)
	case c.MaxHeaderList < 0:
		return fmt.Errorf("hbone: max header list %d: must not be negative", c.MaxHeaderList)
	}
	return nil
}

const (
	minWindow       = 1 << 10
	clientHeaderMax = 16 << 10
	serverHeaderMax = 64 << 10
)
