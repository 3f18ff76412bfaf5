package hbone

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// A session that closes when its last stream has ended must not take the tail of
// that stream with it: a connection closed with bytes unread is reset, and what is
// still under way is lost.
func TestSessionThatClosesDeliversWhatItHasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 100_000
		got := make(chan int64, 1)
		r := newRig(t, rigConfig{
			pair: simPair(simnet.Options{Delay: 20 * time.Millisecond}),
			handler: func(_ context.Context, in *Incoming) {
				st, err := in.Accept(nil)
				check(t, err)
				st.CloseWrite()
				n, err := io.Copy(io.Discard, st)
				if err != nil {
					t.Error(err)
				}
				got <- n
				st.Close()
			},
		})
		st := open(t, r.client)
		_, err := io.ReadAll(st) // the server's end: from now on the client's is the last
		check(t, err)
		go r.server.Drain(t.Context()) // its second GOAWAY, after a round trip of 40 ms, crosses the end of the upload
		time.Sleep(44 * time.Millisecond)
		_, err = st.Write(make([]byte, size))
		check(t, err)
		time.Sleep(time.Millisecond)
		st.CloseWrite()
		st.Close()
		if n := <-got; n != size {
			t.Errorf("the server received %d bytes, want %d", n, size)
		}
		<-r.client.life.transportClosed
		<-r.server.life.transportClosed
	})
}

// What the last stream has written counts as sent once both halves have ended. A
// session that closes then must get it through, however slow the line.
func TestTheLastBytesOfAStreamOutliveItsSession(t *testing.T) {
	const size = 800 << 10 // at 4 KiB per 20 ms: 4 s, more than CloseTimeout
	for name, idle := range map[string]func(*Session){
		"when idle": (*Session).CloseWhenIdle,
		"at once":   func(s *Session) { s.Close(nil) },
		"drained":   func(s *Session) { s.Drain(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := make(chan int64, 1)
				r := newRig(t, rigConfig{pair: simPair(simnet.Options{Delay: 40 * time.Millisecond, Buffer: 4 << 10}), handler: func(_ context.Context, in *Incoming) {
					st, err := in.Accept(nil)
					if err != nil {
						got <- 0
						return
					}
					st.CloseWrite()
					n, err := io.Copy(io.Discard, st)
					if err != nil {
						t.Errorf("the server read %d bytes and %v, want an end", n, err)
					}
					st.Close()
					got <- n
				}})
				st := open(t, r.client)
				st.SetWriteDeadline(time.Now().Add(time.Hour)) // what is written goes into the queue and not, when the transport is free, out at once
				_, err := st.Write(make([]byte, size))
				check(t, err)
				check(t, st.CloseWrite())
				if _, err := io.Copy(io.Discard, st); err != nil {
					t.Fatalf("the client read %v, want an end", err)
				}
				started := time.Now()
				idle(r.client)
				if n := <-got; n != size {
					t.Errorf("the server received %d of %d bytes", n, size)
				}
				if took := time.Since(started); took < r.client.cfg.CloseTimeout {
					t.Errorf("all was through after %v: this line is not slow", took)
				}
				<-r.client.Closed()
			})
		})
	}
}

// A peer that reads no more holds a session that was closed for CloseTimeout if streams
// were cut off, for FlushTimeout if all had ended: never for ever.
func TestSessionThatClosesDoesNotWaitForEver(t *testing.T) {
	for name, cut := range map[string]bool{"streams cut off": true, "all ended": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := simnet.Pair(simnet.Options{})
				r := newRig(t, rigConfig{pair: func(testing.TB) (net.Conn, net.Conn) { return a, b }})
				st := open(t, r.client)
				if !cut {
					st.CloseWrite()
					io.Copy(io.Discard, st)
				}
				synctest.Wait()
				a.Stall()
				a.StallIn()
				started := time.Now()
				r.client.Close(nil)
				<-r.client.Closed()
				want := r.client.cfg.FlushTimeout
				if cut {
					want = r.client.cfg.CloseTimeout
				}
				if took := time.Since(started); took != want {
					t.Errorf("the transport was closed after %v, want %v", took, want)
				}
				b.Cut()
			})
		})
	}
}

// The end of Serve's context bounds a session that is ending already, and one whose
// streams have all ended: a process that stops does not wait for a peer that hangs.
func TestServeEndsSoonAfterItsContext(t *testing.T) {
	for name, drained := range map[string]bool{"drained before": true, "not drained": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientTLS, serverTLS := simPair(simnet.Options{})(t)
				a := clientTLS.(*simnet.Conn)
				ct, st := tlsOver(t, clientTLS, serverTLS)
				server := NewServer(st, DefaultConfig(), echoHandler)
				ctx, stop := context.WithCancel(t.Context())
				served := make(chan struct{})
				go func() { server.Serve(ctx); close(served) }()
				client, err := NewClient(t.Context(), ct, DefaultConfig())
				check(t, err)
				endStream(open(t, client))
				synctest.Wait()
				a.Stall() // the client answers nothing any more
				if drained {
					server.Close(nil)
					time.Sleep(5 * time.Second)
				}
				select {
				case <-served:
					t.Fatal("Serve has returned, and the client has not heard of the end")
				default:
				}
				began := time.Now()
				stop()
				<-served
				if took := time.Since(began); took > server.cfg.CloseTimeout {
					t.Errorf("Serve returned %v after its context, want %v at most", took, server.cfg.CloseTimeout)
				}
				a.Cut()
				<-client.Closed()
			})
		})
	}
}

// Nothing of a session that never had a stream is worth waiting for.
func TestUnusedSessionThatClosesWaitsForCloseTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{})
		r := newRig(t, rigConfig{pair: func(testing.TB) (net.Conn, net.Conn) { return a, b }})
		synctest.Wait()
		b.Stall()
		started := time.Now()
		r.client.Close(nil)
		<-r.client.Closed()
		if took, want := time.Since(started), r.client.cfg.CloseTimeout; took != want {
			t.Errorf("the transport was closed after %v, want %v", took, want)
		}
		b.Resume()
	})
}

// An inner session that breaks while a write of its hangs in its parent's
// connection is closed at once: it holds no lock that it waits for.
func TestInnerSessionEndsWhileItsCarrierHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clientTLS, serverTLS := testTLS()
		var a *simnet.Conn
		outer := newRig(t, rigConfig{
			pair: func(testing.TB) (net.Conn, net.Conn) {
				var b *simnet.Conn
				a, b = simnet.Pair(simnet.Options{Buffer: 4 << 10})
				return a, b
			},
			handler: func(_ context.Context, in *Incoming) {
				if st, err := in.Accept(nil); err == nil {
					if tr, err := ServerTLS(t.Context(), st, serverTLS); err == nil {
						NewServer(tr, DefaultConfig(), echoHandler).Serve(t.Context())
					}
				}
			},
		})
		tr, err := ClientTLS(t.Context(), open(t, outer.client), clientTLS)
		check(t, err)
		inner, err := NewClient(t.Context(), tr, DefaultConfig())
		check(t, err)
		st := open(t, inner)
		a.Stall()
		go st.Write(make([]byte, 40_000))
		synctest.Wait()
		start := time.Now()
		inner.fail(io.ErrUnexpectedEOF)
		<-inner.life.transportClosed
		if took := time.Since(start); took != 0 {
			t.Errorf("ended after %v, want at once", took)
		}
		a.Resume()
		synctest.Wait()
	})
}

// A stream that is closed before its answer waits for none: its session does not
// count as late for it.
func TestClosedStreamWaitsForNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		st, err := s.Start(&Request{Authority: "app.default:80"})
		check(t, err)
		st.Close()
		synctest.Wait()
		p.headers(st.id, false, ":status", "200")
		p.sync()
		if err := s.CheckIdle(); err != nil {
			t.Error(err)
		}
	})
}
