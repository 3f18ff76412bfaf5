package hbone

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// stallable is a rig whose connection can be made to swallow everything.
func stallable(t *testing.T, c rigConfig) (r *rig, stall, resume func()) {
	var a, b *simnet.Conn
	c.pair = func(testing.TB) (net.Conn, net.Conn) {
		a, b = simnet.Pair(simnet.Options{Delay: 10 * time.Millisecond})
		return a, b
	}
	r = newRig(t, c)
	return r, func() { a.Stall(); b.Stall() }, func() { a.Resume(); b.Resume() }
}

// A peer is silent when a PING that goes out with a CONNECT is answered by
// nothing, and no longer once anything arrives. Its sessions inside streams are
// told too.
func TestAPeerIsSilentUntilItIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stall, resume := stallable(t, rigConfig{handler: echoHandler})
		outer := open(t, r.client)
		child := newSession(plainTransport{outer}, DefaultConfig(), true)
		child.parent = r.client
		child.joinParent()
		time.Sleep(time.Minute)
		var told atomic.Int64
		changed := make(chan struct{}, 1)
		child.Observe(changed, func() { told.Add(1) })
		<-changed
		stall()
		asked := time.Now()
		st, err := r.client.Start(&Request{Authority: "a:1"})
		check(t, err)
		time.Sleep(flow.SilentAtLeast - time.Millisecond)
		if r.client.Silent() {
			t.Error("silent too early")
		}
		time.Sleep(2 * time.Millisecond)
		if !r.client.Silent() || !child.Silent() || !r.client.Availability(time.Now()).Silent || told.Load() != 1 {
			t.Errorf("not silent %v after a CONNECT without an answer; told %d times", time.Since(asked), told.Load())
		}
		if r.client.Err() != nil || len(changed) != 0 {
			t.Error("silence has ended the session, or counts as a change")
		}
		resume()
		synctest.Wait()
		if r.client.Silent() || len(changed) != 1 {
			t.Error("silent though it has answered, or not told")
		}
		if _, err := st.AwaitResponse(t.Context()); err != nil {
			t.Error(err)
		}
		st.Close()
		outer.Close()
		child.fail(errors.New("test ends"))
	})
}

// A peer that was heard just before is asked by no PING with the CONNECT. One that answers nothing is silent soon all the
// same, though nobody asks it again; and one that answers gets no PING more for it.
func TestAPeerThatWasHeardJustBeforeIsSilentSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, stall, resume := stallable(t, rigConfig{handler: echoHandler})
		time.Sleep(time.Minute)
		open(t, r.client).Close() // heard
		r.client.mu.Lock()
		pings := r.client.ping.count
		r.client.mu.Unlock()
		time.Sleep(flow.PingActive - 100*time.Millisecond)
		r.client.mu.Lock()
		if more := r.client.ping.count - pings; more > 0 {
			t.Errorf("%d PINGs after a CONNECT that was answered at once, want none", more)
		}
		r.client.mu.Unlock()
		open(t, r.client).Close()
		stall()
		st, err := r.client.Start(&Request{Authority: "a:1"})
		check(t, err)
		time.Sleep(2*flow.SilentAtLeast - time.Millisecond)
		if r.client.Silent() {
			t.Error("silent too early")
		}
		time.Sleep(2 * time.Millisecond)
		if !r.client.Silent() {
			t.Errorf("not silent %v after a CONNECT without an answer", 2*flow.SilentAtLeast)
		}
		resume()
		if _, err := st.AwaitResponse(t.Context()); err != nil {
			t.Error(err)
		}
		if r.client.Silent() {
			t.Error("silent though it has answered")
		}
		st.Close()
	})
}

// A stream that brings data shows that the peer is there, however late its PING
// is answered.
func TestAPeerThatSendsDataIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		st, id := p.openRaw(s)
		p.mu.Lock()
		p.pongs = false
		p.mu.Unlock()
		for began := time.Now(); time.Since(began) < 15*time.Second; {
			p.fr.WriteData(id, false, []byte("x"))
			time.Sleep(250 * time.Millisecond)
			if s.Silent() {
				t.Fatalf("silent after %v", time.Since(began))
			}
		}
		st.Close()
	})
}

// Abandon has those repeated that can be repeated.
func TestAbandonEndsWhatCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := rawServer(t, DefaultConfig())
		accepted, _ := p.openRaw(s)
		start := func(req Request, early string) *Stream {
			st, _ := p.startRaw(s, req)
			st.Write([]byte(early))
			return st
		}
		quiet, harmless, spoken := start(Request{}, ""), start(Request{Replayable: true}, "hello"), start(Request{}, "GET /")
		synctest.Wait()
		s.Abandon(ErrSilent)
		reset := map[uint32]bool{} // in any order
		for range 2 {
			reset[p.next("RST_STREAM", func(f rawFrame) bool { return f.Type == http2.FrameRSTStream }).StreamID] = true
		}
		for name, st := range map[string]*Stream{"nothing sent": quiet, "harmless": harmless} {
			if _, err := st.AwaitResponse(t.Context()); !errors.Is(err, ErrRetryable) || !errors.Is(err, ErrSilent) {
				t.Errorf("%s: %v, want one that can be repeated", name, err)
			}
			if !reset[st.id] {
				t.Errorf("%s: no RST_STREAM", name)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := spoken.AwaitResponse(ctx); errors.Is(err, ErrRetryable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("early data sent: %v, want that it went on waiting", err)
		}
		if _, err := accepted.Write([]byte("x")); err != nil {
			t.Errorf("an accepted stream: %v", err)
		}
		accepted.Close()
	})
}
