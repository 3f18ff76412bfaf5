package h2conform

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/net/http2"
)

// State is where the victim, or the session, is when a row begins.
type State uint8

const (
	Open       State = iota // the victim is answered, and its other end stays open
	Fresh                   // of a server: not opened yet; of a client: not answered yet
	HalfClosed              // the peer has sent END_STREAM on the victim
	Reset                   // the peer has reset the victim
	Quiet                   // the victim is the sibling, which must work afterwards
	Prefaced                // the client's preface has been sent, nothing else
	Connected               // nothing has been sent
)

// Side is whom a row concerns.
type Side uint8

const (
	Both Side = iota
	Servers
	Clients
)

// Want is what must come of it.
type Want struct {
	kind   wantKind
	code   http2.ErrCode
	status string
}

type wantKind uint8

const (
	wantNothing wantKind = iota
	wantConn
	wantStream
	wantStatus
	wantEnd
)

// Nothing: the frame is ignored, or is proper.
var Nothing = Want{}

// Ended: the connection ends, with or without a word.
var Ended = Want{kind: wantEnd}

// Conn is a connection error: GOAWAY with code, and the end.
func Conn(code http2.ErrCode) Want { return Want{kind: wantConn, code: code} }

// Stream is a stream error: RST_STREAM with code on the victim.
func Stream(code http2.ErrCode) Want { return Want{kind: wantStream, code: code} }

// Status is an answer with END_STREAM on the victim.
func Status(status string) Want { return Want{kind: wantStatus, status: status} }

func (w Want) String() string {
	switch w.kind {
	case wantConn:
		return fmt.Sprintf("connection error %v", w.code)
	case wantStream:
		return fmt.Sprintf("stream error %v", w.code)
	case wantStatus:
		return "status " + w.status
	case wantEnd:
		return "the end of the connection"
	}
	return "nothing"
}

// Row is one rule.
type Row struct {
	Section string // of RFC 9113, unless another is named
	Name    string
	Side    Side
	State   State
	Send    func(x *Exchange)
	Want    Want
	// Because says why Want is not what the section says by itself.
	Because string
	// Only, if set, says for which endpoints the row can be shown.
	Only func(x *Exchange) bool
}

// Run runs every row that concerns target, each on a session of its own.
func Run(t *testing.T, target Target) {
	for _, r := range Rows {
		if r.Side == Servers && target.Server == nil || r.Side == Clients && target.Client == nil {
			continue
		}
		t.Run(r.Section+" "+r.Name, func(t *testing.T) { r.run(t, target) })
	}
}

func (r Row) run(t *testing.T, target Target) {
	x := begin(t, target, r.State)
	defer x.end()
	if r.Only != nil && !r.Only(x) {
		return
	}
	from := x.mark()
	r.Send(x)
	if err := r.check(x, from); err != nil {
		t.Errorf("%v, want %v; the endpoint sent %s", err, r.Want, x.since(from))
	}
}

// check looks at what came before the answer to a PING behind the row's frames:
// whatever they provoke is queued before that.
func (r Row) check(x *Exchange, from int) error {
	synced := x.sync()
	f, ok := x.await(from, func(f Frame) bool { return r.Want.answers(f, x.ID) || isOurs(f) })
	ok = ok && r.Want.answers(f, x.ID)
	switch r.Want.kind {
	case wantNothing:
	case wantEnd:
		if synced == nil {
			return errors.New("PING was answered")
		}
		return x.closes()
	case wantConn:
		if !ok || f.Code != r.Want.code {
			return fmt.Errorf("got %v", f)
		}
		return x.closes()
	case wantStream:
		if !ok || f.Code != r.Want.code {
			return fmt.Errorf("got %v", f)
		}
	case wantStatus:
		if !ok || f.field(":status") != r.Want.status || !f.Flags.Has(http2.FlagHeadersEndStream) {
			return fmt.Errorf("got %v", f)
		}
	}
	return r.lives(x, from)
}

// answers reports whether f is of the kind that w is about.
func (w Want) answers(f Frame, victim uint32) bool {
	switch w.kind {
	case wantConn:
		return f.Type == http2.FrameGoAway
	case wantStream:
		return f.Type == http2.FrameRSTStream && f.StreamID == victim
	case wantStatus:
		return f.Type == http2.FrameHeaders && f.StreamID == victim
	}
	return false
}

// isOurs reports whether f answers the PING of sync.
func isOurs(f Frame) bool {
	return f.Type == http2.FramePing && f.Flags.Has(http2.FlagPingAck) && bytes.HasPrefix(f.Data, []byte(syncTag))
}

// closes waits for the end of the connection, which is no reset before what was
// sent has arrived.
func (x *Exchange) closes() error {
	if c, ok := x.conn.(interface{ CloseWrite() error }); ok {
		c.CloseWrite() // so that it need not linger
	}
	if _, ok := x.await(x.mark(), func(Frame) bool { return false }); !ok {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.err != nil {
			return nil
		}
	}
	return fmt.Errorf("the connection stays open")
}

// lives checks that only the victim, if anything, was harmed.
func (r Row) lives(x *Exchange, from int) error {
	if err := x.sync(); err != nil {
		return err
	}
	if r.Want.kind == wantNothing {
		x.mu.Lock()
		for _, f := range x.frames[from:] {
			if f.Type == http2.FrameGoAway || f.Type == http2.FrameRSTStream {
				x.mu.Unlock()
				return fmt.Errorf("%v", f)
			}
		}
		x.mu.Unlock()
	}
	if err := x.sibling.echo("still there"); err != nil {
		return fmt.Errorf("the sibling is harmed: %w", err)
	}
	if x.client || !x.target.Client.Elsewhere {
		return x.opens()
	}
	return nil
}

// opens checks that a new stream works.
func (x *Exchange) opens() error {
	if err := x.stream().echo("a new stream"); err != nil {
		return fmt.Errorf("a new stream: %w", err)
	}
	return nil
}
