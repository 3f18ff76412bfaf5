package hbone

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// aborted is how many transfers a session has to survive in these tests.
// ISTHMUS_ABORTED=100000 makes it as many.
func aborted(t testing.TB, n int) int {
	s := os.Getenv("ISTHMUS_ABORTED")
	if s == "" {
		return n
	}
	n, err := strconv.Atoi(s)
	check(t, err)
	return n
}

// transfers opens streams whose transfers end too soon, each as its seed says: on
// either side, up, down or both ways, by a reset, a close, an application that
// fails, a context that ends, or an answer that is no 200.
type transfers struct {
	most int // bytes one way
}

func (x transfers) rng(st *Stream, side uint64) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(st.ID()), side))
}

// size favours short transfers and has some that fill a stream's window.
func (x transfers) size(rng *rand.Rand) int { return rng.IntN(1 + x.most>>rng.IntN(8)) }

// run moves some bytes both ways on st and breaks off.
func (x transfers) run(ctx context.Context, st *Stream, rng *rand.Rand) {
	if rng.IntN(3) == 0 {
		a, b := simnet.Pair(simnet.Options{})
		defer b.Close()
		ctx, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(20))*time.Millisecond)
		defer cancel()
		go b.Write(make([]byte, x.size(rng)))
		Relay(ctx, st, &brokenConn{Conn: a, left: x.size(rng)})
		return
	}
	var both sync.WaitGroup
	up, down, how := x.size(rng), x.size(rng), rng.IntN(4)
	st.SetDeadline(time.Now().Add(10 * time.Millisecond)) // the other side may want less
	both.Go(func() {
		st.Write(make([]byte, up))
		if how == 3 {
			st.CloseWrite()
		}
	})
	both.Go(func() { io.CopyN(io.Discard, st, int64(down)) })
	if how == 0 {
		time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
		st.Reset(http2.ErrCodeCancel) // somebody is in Write, somebody in Read
	}
	both.Wait()
	if how == 1 {
		st.Reset(http2.ErrCodeConnect)
	}
	st.Close()
}

func (x transfers) handler(ctx context.Context, in *Incoming) {
	if in.Authority == "echo:1" {
		echoHandler(ctx, in)
		return
	}
	rng := x.rng(in.st, 1)
	switch rng.IntN(10) {
	case 0:
		in.Refuse(503, nil)
		return
	case 1:
		return
	}
	if st, err := in.Accept(nil); err == nil {
		x.run(ctx, st, rng)
	}
}

// start opens and breaks n streams on s, several at a time, and then sees to it
// that the next connection works.
func (x transfers) start(t *testing.T, s *Session, n int) {
	var workers sync.WaitGroup
	next := make(chan struct{})
	for range 16 {
		workers.Go(func() {
			for range next {
				st, err := s.Start(&Request{Authority: "app:1"})
				if err != nil {
					t.Error(err)
					continue
				}
				rng := x.rng(st, 0)
				if rng.IntN(2) == 0 {
					st.Write(make([]byte, min(x.size(rng), 32<<10)))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(200))*time.Millisecond)
				if _, err := st.AwaitResponse(ctx); err == nil {
					x.run(ctx, st, rng)
				}
				cancel()
			}
		})
	}
	for range n {
		next <- struct{}{}
	}
	close(next)
	workers.Wait()
	st, _, err := s.Open(t.Context(), &Request{Authority: "echo:1"})
	check(t, err)
	go func() {
		st.Write(make([]byte, 8<<20))
		st.CloseWrite()
	}()
	st.SetReadDeadline(time.Now().Add(30 * time.Second))
	if n, err := io.Copy(io.Discard, st); n != 8<<20 || err != nil {
		t.Errorf("%d bytes of 8 MiB came back on the next connection: %v", n, err)
	}
	st.Close()
}

func TestSessionSurvivesAbortedTransfers(t *testing.T) {
	x := transfers{most: 256 << 10}
	r := newRig(t, rigConfig{handler: x.handler, pair: simPair(simnet.Options{Buffer: 256 << 10})})
	x.start(t, r.client, aborted(t, 2000))
	r.asBefore(t)
}

// The same inside a tunnel: the outer session carries one stream, the inner one's,
// beside others that are broken off too.
func TestNestedSessionSurvivesAbortedTransfers(t *testing.T) {
	x := transfers{most: 256 << 10}
	clientTLS, serverTLS := testTLS()
	inner := &rig{}
	up := make(chan struct{})
	outer := newRig(t, rigConfig{pair: simPair(simnet.Options{Buffer: 256 << 10}), handler: func(ctx context.Context, in *Incoming) {
		if in.Authority != "inner:1" {
			x.handler(ctx, in)
			return
		}
		st, err := in.Accept(nil)
		if err != nil {
			return
		}
		if tr, err := ServerTLS(ctx, st, serverTLS); err == nil {
			inner.server = NewServer(tr, DefaultConfig(), x.handler)
			close(up)
			inner.server.Serve(ctx)
		}
	}})
	st, _, err := outer.client.Open(t.Context(), &Request{Authority: "inner:1"})
	check(t, err)
	tr, err := ClientTLS(t.Context(), st, clientTLS)
	check(t, err)
	inner.client, err = NewClient(t.Context(), tr, DefaultConfig())
	check(t, err)
	<-up
	var both sync.WaitGroup
	both.Go(func() { x.start(t, inner.client, aborted(t, 1000)) })
	both.Go(func() { x.start(t, outer.client, aborted(t, 1000)) })
	both.Wait()
	inner.asBefore(t)
	inner.close()
	outer.asBefore(t)
}
