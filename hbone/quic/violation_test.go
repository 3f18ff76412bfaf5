package quic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// emptySettings begin a control stream.
var emptySettings = slices.Clip(appendFrame([]byte{streamControl}, frameSettings))

// rawServer returns a session with a server that speaks HTTP/3 by hand: control on its control stream, then serve.
func (r *rig) rawServer(control []byte, serve func(q *quicgo.Conn, ctrl *quicgo.SendStream)) *hbone.Session {
	r.t.Helper()
	l, err := quicgo.Listen(udp(r.t), r.ids.ServerTLS(serverID, nil, "h3"), nil)
	check(r.t, err)
	go func() {
		q, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		ctrl, err := q.OpenUniStream()
		if err != nil {
			return
		}
		ctrl.Write(control)
		serve(q, ctrl)
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

// goAway is a GOAWAY with id.
func goAway(id uint64) []byte { return appendFrame(nil, frameGoAway, quicvarint.Append(nil, id)...) }

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
		{name: "reserved setting", control: appendFrame([]byte{streamControl}, frameSettings, 0x4, 1), code: codeSettings},
		{name: "repeated setting", control: appendFrame([]byte{streamControl}, frameSettings, 0x6, 1, 0x6, 1), code: codeSettings},
		{name: "end in SETTINGS", control: appendFrame([]byte{streamControl}, frameSettings, 0x6), code: codeFrame},
		{name: "MAX_PUSH_ID", control: appendFrame(emptySettings, frameMaxPushID, 1), code: codeFrameUnexpected, only: "server"},
		{name: "CANCEL_PUSH", control: appendFrame(emptySettings, frameCancelPush, 1), code: codeID},
		{name: "push stream of a client", uni: []byte{streamPush, 0}, code: codeStreamCreation, only: "client"},
		{name: "push stream of a server", uni: []byte{streamPush, 0}, code: codeID, only: "server"},
		{name: "GOAWAY without ID", control: appendFrame(emptySettings, frameGoAway), code: codeFrame},
		{name: "GOAWAY with two IDs", control: appendFrame(emptySettings, frameGoAway, 0, 0), code: codeFrame},
		{name: "GOAWAY with the ID of no request", control: slices.Concat(emptySettings, goAway(1)), code: codeID, only: "server"},
		{name: "GOAWAY with a larger ID", control: slices.Concat(emptySettings, goAway(8), goAway(12)), code: codeID, only: "server"},
		{name: "flood of PING", control: slices.Concat(emptySettings, bytes.Repeat(appendFrame(nil, framePing, make([]byte, 8)...), 2*maxIdleFrames)), code: codeExcessiveLoad},
		{name: "flood of unknown frames", control: slices.Concat(emptySettings, bytes.Repeat(appendFrame(nil, frameReserved), 2*maxIdleFrames)), code: codeExcessiveLoad},
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
				s := r.rawServer(c.control, func(q *quicgo.Conn, _ *quicgo.SendStream) {
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

// A GOAWAY ends the requests that the server does not process, so that they are tried elsewhere at once. Others go on.
func TestGoAwayReturnsUnprocessedRequests(t *testing.T) {
	r := newRig(t, rigConfig{})
	s := r.rawServer(emptySettings, func(q *quicgo.Conn, ctrl *quicgo.SendStream) {
		var streams []*quicgo.Stream
		for range 3 {
			qs, err := q.AcceptStream(context.Background())
			if err != nil {
				t.Error(err)
				return
			}
			streams = append(streams, qs)
		}
		ctrl.Write(goAway(quicvarint.Max - 3)) // an announcement
		ctrl.Write(goAway(4))
		time.Sleep(100 * time.Millisecond)
		streams[0].Write(appendFrame(responseBlock(200, nil), frameData, 'x'))
		streams[0].Close()
	})
	var streams []*hbone.Stream
	for range 3 {
		st, err := s.Start(&hbone.Request{Authority: "app.default:80"})
		check(t, err)
		defer st.Close()
		streams = append(streams, st)
	}
	results := make(chan error, 3)
	for _, st := range streams {
		go func() {
			_, err := st.AwaitResponse(t.Context())
			if err == nil {
				_, err = io.ReadFull(st, make([]byte, 1))
			}
			results <- err
		}()
	}
	processed := 0
	for range streams {
		select {
		case err := <-results:
			if err == nil {
				processed++
			} else if !errors.Is(err, hbone.ErrRetryable) {
				t.Errorf("got %v, want that it may be tried again", err)
			}
		case <-time.After(3 * time.Second):
			t.Fatal("a CONNECT waits for its response")
		}
	}
	if processed != 1 {
		t.Errorf("%d CONNECTs were processed, want 1", processed)
	}
}

// A server that closes the connection while streams are open ends them at once, also with H3_NO_ERROR.
func TestServerClosesWithOpenStreams(t *testing.T) {
	for _, code := range []quicgo.ApplicationErrorCode{codeInternal, codeNoError} {
		for _, accepted := range []bool{true, false} {
			t.Run(fmt.Sprintf("code %#x, accepted %v", uint64(code), accepted), func(t *testing.T) {
				r := newRig(t, rigConfig{})
				s := r.rawServer(emptySettings, func(q *quicgo.Conn, _ *quicgo.SendStream) {
					qs, err := q.AcceptStream(context.Background())
					if err != nil {
						return
					}
					if accepted {
						qs.Write(responseBlock(200, nil))
						time.Sleep(100 * time.Millisecond)
					}
					q.CloseWithError(code, "")
				})
				ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second) // a PING is overdue after more
				defer cancel()
				st, _, err := s.Open(ctx, &hbone.Request{Authority: "app.default:80"})
				if err == nil {
					st.SetDeadline(time.Now().Add(7 * time.Second))
					_, err = st.Read(make([]byte, 1))
				}
				if err == nil || err == io.EOF || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("got %v, want the end of the session", err)
				}
				closed(t, "the session has ended", s.Done())
			})
		}
	}
}
