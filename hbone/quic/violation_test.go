package quic

import (
	"context"
	"errors"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// emptySettings begin a control stream.
var emptySettings = appendFrame([]byte{streamControl}, frameSettings)

// rawServer returns a session with a server that speaks HTTP/3 by hand: control on its control stream, then serve.
func (r *rig) rawServer(control []byte, serve func(q *quicgo.Conn)) *hbone.Session {
	r.t.Helper()
	l, err := quicgo.Listen(udp(r.t), r.ids.ServerTLS(serverID, nil, "h3"), nil)
	check(r.t, err)
	go func() {
		q, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		if ctrl, err := q.OpenUniStream(); err == nil {
			ctrl.Write(control)
		}
		serve(q)
	}()
	p, err := Dial(context.Background(), udp(r.t), l.Addr(), r.clientTLS(), DialConfig{})
	check(r.t, err)
	s, err := hbone.StartClient(p, hbone.DefaultConfig())
	check(r.t, err)
	r.t.Cleanup(func() {
		s.Close(nil)
		<-s.Closed()
		l.Close()
	})
	return s
}

// closedWith waits until the peer of q has closed it, and checks the code.
func closedWith(t testing.TB, q *quicgo.Conn, code quicgo.ApplicationErrorCode) {
	t.Helper()
	select {
	case <-q.Context().Done():
	case <-time.After(10 * time.Second):
		t.Error("the connection is open")
		return
	}
	var app *quicgo.ApplicationError
	if err := context.Cause(q.Context()); !errors.As(err, &app) || !app.Remote || app.ErrorCode != code {
		t.Errorf("closed with %v, want code %#x", err, code)
	}
}

func endedAs(t testing.TB, err error, want hbone.Outcome) {
	t.Helper()
	if got := hbone.OutcomeOf(err); got != want {
		t.Errorf("the session ended as %s, want %s: %v", got, want, err)
	}
}

// A connection error closes the connection with its code (RFC 9114 §8). The session above ends with the outcome of a violation.
func TestViolationClosesConnection(t *testing.T) {
	for _, c := range []struct {
		name    string
		control []byte // all of the control stream; nil: SETTINGS
		uni     []byte // of another unidirectional stream
		head    bool   // a CONNECT, or its response
		request []byte // behind it
		code    quicgo.ApplicationErrorCode
		only    string // the side that breaks the rule; empty: each
	}{
		{name: "no SETTINGS", control: appendFrame([]byte{streamControl}, frameData, 'x'), code: codeMissingSettings},
		{name: "second control stream", uni: emptySettings, code: codeStreamCreation},
		{name: "SETTINGS before HEADERS", request: appendFrame(nil, frameSettings), code: codeFrameUnexpected},
		{name: "DATA before HEADERS", request: appendFrame(nil, frameData, 'x'), code: codeFrameUnexpected},
		{name: "SETTINGS behind HEADERS", head: true, request: appendFrame(nil, frameSettings), code: codeFrameUnexpected},
		{name: "HEADERS behind HEADERS", head: true, request: appendFrame(responseBlock(200, nil), frameData, 'x'), code: codeFrameUnexpected},
		{name: "end in HEADERS", request: []byte{frameHeaders, 10, 0, 0}, code: codeFrame},
		{name: "end in DATA", head: true, request: []byte{frameData, 10, 'x'}, code: codeFrame},
		{name: "end in a type", head: true, request: []byte{0x40}, code: codeFrame},
		{name: "end in a length", head: true, request: []byte{frameData, 0x40}, code: codeFrame},
		{name: "dynamic table", request: appendFrame(nil, frameHeaders, 1, 0, 0x80), code: codeDecompression},
		{name: "no such entry", request: appendFrame(nil, frameHeaders, 0, 0, 0xff, 0x7f), code: codeDecompression},
	} {
		if c.control == nil {
			c.control = emptySettings
		}
		outcome := hbone.OutcomeFault
		if c.code == codeExcessiveLoad {
			outcome = hbone.OutcomeAbuse
		}
		violate := func(q *quicgo.Conn, qs *quicgo.Stream, head []byte) {
			if uni, err := q.OpenUniStream(); c.uni != nil && err == nil {
				uni.Write(c.uni)
			}
			if c.head {
				qs.Write(head)
			}
			if c.request != nil {
				qs.Write(c.request)
				qs.Close()
			}
		}
		if c.only != "server" {
			t.Run(c.name+" of a client", func(t *testing.T) {
				r := newRig(t, rigConfig{})
				q := r.rawControl(c.control)
				qs, err := q.OpenStream()
				check(t, err)
				violate(q, qs, requestBlock("app.default:80", nil))
				closedWith(t, q, c.code)
				select {
				case err := <-r.served:
					endedAs(t, err, outcome)
				case <-time.After(10 * time.Second):
					t.Error("the session of the server is open")
				}
			})
		}
		if c.only != "client" {
			t.Run(c.name+" of a server", func(t *testing.T) {
				r := newRig(t, rigConfig{})
				done := make(chan struct{})
				s := r.rawServer(c.control, func(q *quicgo.Conn) {
					defer close(done)
					if qs, err := q.AcceptStream(context.Background()); err == nil { // otherwise it is closed already
						violate(q, qs, responseBlock(200, nil))
					}
					closedWith(t, q, c.code)
				})
				st, err := s.Start(&hbone.Request{Authority: "app.default:80"})
				check(t, err)
				defer st.Close()
				closed(t, "the session of the client has ended", s.Done())
				endedAs(t, s.Err(), outcome)
				<-done
			})
		}
	}
}
