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

// A peer that does not close its half holds a session up for CloseTimeout, no
// longer.
func TestSessionThatClosesDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b *simnet.Conn
		r := newRig(t, rigConfig{pair: func(testing.TB) (net.Conn, net.Conn) {
			var a *simnet.Conn
			a, b = simnet.Pair(simnet.Options{})
			return a, b
		}})
		synctest.Wait()
		b.Stall()
		start := time.Now()
		r.client.Close(nil)
		<-r.client.life.transportClosed
		if took, want := time.Since(start), r.client.cfg.CloseTimeout; took > want {
			t.Errorf("closed after %v, want %v at most", took, want)
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
