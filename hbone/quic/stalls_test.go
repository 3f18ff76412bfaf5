package quic

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
)

// A reset reaches an end that has sent its FIN and does not read, as over TCP.
func TestResetReachesStalledReceiver(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	for name, size := range map[string]int{"window is full": 4 << 20, "reset is behind unread data": 400 << 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := make(chan error, 1)
			r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
				st, err := in.Accept(nil)
				if err != nil {
					return
				}
				defer st.Close()
				if in.Authority == "server.resets:80" {
					io.ReadAll(st)
					st.SetWriteDeadline(time.Now().Add(time.Second))
					st.Write(make([]byte, size))
					st.Reset(http2.ErrCodeConnect)
					return
				}
				st.CloseWrite()
				<-ctx.Done()
				served <- context.Cause(ctx)
			}})
			fromServer, _, err := r.client.Open(t.Context(), &hbone.Request{Authority: "server.resets:80"})
			check(t, err)
			defer fromServer.Close()
			check(t, fromServer.CloseWrite())

			st := open(t, r.client)
			_, err = io.ReadAll(st)
			check(t, err)
			st.SetWriteDeadline(time.Now().Add(time.Second))
			st.Write(make([]byte, size))
			time.Sleep(time.Second)
			st.Reset(http2.ErrCodeConnect)
			select {
			case err := <-served:
				wantReset(t, err, http2.ErrCodeConnect)
			case <-time.After(lastWordsWithin + 5*time.Second):
				t.Error("the server does not know of the reset")
			}
			eventually(t, "the client knows of the reset", func() bool { return fromServer.Broken() != nil })
			wantReset(t, fromServer.Broken(), http2.ErrCodeConnect)
		})
	}
}

// A session that has closed in order waits for a peer that does not read as long as over TCP, and then closes the connection.
func TestUnreadStreamDoesNotHoldClosedSession(t *testing.T) {
	defer func(d time.Duration) { flushWithin = d }(flushWithin)
	flushWithin = 2 * time.Second
	t.Run("server", func(t *testing.T) {
		written := make(chan error, 2)
		r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
			if st, err := in.Accept(nil); err == nil {
				io.ReadAll(st)
				_, err := st.Write(make([]byte, 512<<10+100<<10)) // the raw client's window, and some
				st.Close()
				written <- err
			}
		}})
		open(t, r.client).Close() // its session is the first of the listener
		<-written
		q := r.raw()
		qs, err := q.OpenStreamSync(t.Context())
		check(t, err)
		qs.Write(requestBlock("app.default:80", nil))
		qs.Close()
		check(t, <-written)
		eventually(t, "the stream is complete", func() bool { return r.server(1).Streams() == 0 })
		r.server(1).Close(nil)
		closed(t, "the connection is closed", q.Context().Done())
	})
	t.Run("client", func(t *testing.T) {
		r := newRig(t, rigConfig{handler: func(ctx context.Context, in *hbone.Incoming) {
			if st, err := in.Accept(nil); err == nil {
				st.CloseWrite()
				<-ctx.Done()
			}
		}})
		st := open(t, r.client)
		_, err := io.ReadAll(st)
		check(t, err)
		st.SetWriteDeadline(time.Now().Add(time.Second))
		st.Write(make([]byte, 4<<20)) // until all windows are full
		st.SetWriteDeadline(time.Time{})
		st.Close()
		eventually(t, "the stream is complete", func() bool { return r.client.Streams() == 0 })
		r.client.Close(nil)
		closed(t, "the server's session has ended", r.server(0).Done())
	})
}

// A client waits for the response of a server that has stopped reading.
func TestLateRefusalIsDelivered(t *testing.T) {
	r := newRig(t, rigConfig{})
	s := r.rawServer(emptySettings, func(q *quicgo.Conn, _ *quicgo.SendStream) {
		qs, err := q.AcceptStream(context.Background())
		if err != nil {
			return
		}
		qs.CancelRead(codeNoError)
		time.Sleep(2 * stallCheck) // the response was lost
		qs.Write(responseBlock(503, hbone.Header{header.NameReason: string(header.ReasonNoEndpoint)}))
		qs.Close()
	})
	_, _, err := s.Open(t.Context(), &hbone.Request{Authority: "app.default:80"})
	var status *hbone.StatusError
	if !errors.As(err, &status) || status.Status != 503 || status.Reason() != header.ReasonNoEndpoint {
		t.Errorf("got %v, want 503 no_endpoint", err)
	}
}

// A refused CONNECT whose client has sent its end leaves nothing that delays the end of the session.
func TestRefusalBehindEndOfRequest(t *testing.T) {
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		time.Sleep(50 * time.Millisecond) // the end is first
		in.Refuse(503, nil)
	}})
	st, err := r.client.Start(&hbone.Request{Authority: "app.default:80"})
	check(t, err)
	check(t, st.CloseWrite())
	var status *hbone.StatusError
	if _, err = st.AwaitResponse(t.Context()); !errors.As(err, &status) {
		t.Fatalf("got %v, want 503", err)
	}
	r.client.Close(nil)
	closed(t, "the session is closed", r.client.Closed())
	closed(t, "the server's session is closed", r.server(0).Closed())
}

// A peer that is not ours receives everything before the connection closes, also if packets are lost meanwhile.
func TestCloseDeliversToOtherPeer(t *testing.T) {
	data := make([]byte, 20<<10) // fits in the first congestion window
	lost := make(chan struct{})
	r := newRig(t, rigConfig{handler: func(_ context.Context, in *hbone.Incoming) {
		if st, err := in.Accept(nil); err == nil {
			if in.Authority == "late.default:80" {
				<-lost
			}
			st.Write(data)
			st.Close()
		}
	}})
	open(t, r.client).Close() // its session is the first of the listener
	n := newNAT(t, r.listener.Addr())
	q := r.rawAt(n.front.LocalAddr(), emptySettings)
	qs, err := q.OpenStreamSync(t.Context())
	check(t, err)
	qs.Write(requestBlock("late.default:80", nil))
	qs.Close()
	f := newFrames(qs)
	_, err = f.section()
	check(t, err)
	n.loses.Store(true)
	close(lost)
	eventually(t, "everything is written", func() bool { return r.server(1).Streams() == 0 })
	r.server(1).Close(nil)
	time.Sleep(lingerTime * 6 / 5)
	n.loses.Store(false)
	qs.SetReadDeadline(time.Now().Add(10 * time.Second))
	check(t, f.data())
	got, err := io.ReadAll(f.r)
	if err != nil || len(got) < len(data) {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, len(data))
	}
	started := time.Now()
	closedWith(t, q, codeNoError)
	if d := time.Since(started); d > goodbyeWithin {
		t.Errorf("the end took %v", d)
	}
}
