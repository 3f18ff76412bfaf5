package hbone

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/flow"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// chat sends small messages on a stream of s and reads them back, one every
// pause, until stop is closed.
func chat(t testing.TB, s *Session, pause time.Duration, stop chan struct{}) {
	st := open(t, s)
	defer st.Close()
	for buf := make([]byte, 100); ; time.Sleep(pause) {
		select {
		case <-stop:
			return
		default:
		}
		st.Write(buf)
		if _, err := io.ReadFull(st, buf); err != nil {
			t.Error(err)
			return
		}
	}
}

// slowly reads from a stream at a fixed rate, 64 KiB each pause, and notes how
// much was waiting at most.
type slowly struct {
	pause time.Duration
	most  atomic.Int64
}

func (r *slowly) handler(ctx context.Context, in *Incoming) {
	if in.Authority != "slow:1" {
		echoHandler(ctx, in)
		return
	}
	st, err := in.Accept(nil)
	if err != nil {
		return
	}
	defer st.Close()
	for buf := make([]byte, 64<<10); ; time.Sleep(r.pause) {
		if n := int64(st.Buffered()); n > r.most.Load() {
			r.most.Store(n)
		}
		if _, err := io.ReadFull(st, buf); err != nil {
			return
		}
	}
}

func (r *slowly) upload(t testing.TB, s *Session, bytes int) {
	t.Helper()
	st, _, err := s.Open(t.Context(), &Request{Authority: "slow:1"})
	check(t, err)
	for buf := make([]byte, 64<<10); bytes > 0; bytes -= len(buf) {
		_, err := st.Write(buf)
		check(t, err)
	}
	st.CloseWrite()
	io.Copy(io.Discard, st)
	st.Close()
}

// Beside small messages a transfer on a short path has little in front of them,
// and without them the whole window.
func TestSmallMessagesHaveLittleBulkInFrontOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &slowly{pause: time.Millisecond}
		rig := newRig(t, rigConfig{handler: r.handler, pair: simPair(simnet.Options{Delay: 100 * time.Microsecond, Buffer: 64 << 20})})
		r.upload(t, rig.client, 12<<20)
		if n := r.most.Load(); n < 3<<20 {
			t.Errorf("at most %d bytes waited for the reader of a lone transfer, want nearly 4 MiB", n)
		}
		stop := make(chan struct{})
		go chat(t, rig.client, 10*time.Millisecond, stop)
		time.Sleep(200 * time.Millisecond)
		r.most.Store(0)
		r.upload(t, rig.client, 12<<20)
		if n := r.most.Load(); n > 1<<20+flow.SharedWindow {
			t.Errorf("beside small messages %d bytes waited, want the first window and not more than %d", n, 1<<20+flow.SharedWindow)
		}
		st, _, err := rig.client.Open(t.Context(), &Request{Authority: "slow:1"})
		check(t, err)
		go func() {
			for buf := make([]byte, 64<<10); ; {
				if _, err := st.Write(buf); err != nil {
					return
				}
			}
		}()
		time.Sleep(100 * time.Millisecond)
		r.most.Store(0)
		time.Sleep(100 * time.Millisecond)
		if n := r.most.Load(); n > 2*flow.SharedWindow {
			t.Errorf("later %d bytes waited, want %d or so", n, flow.SharedWindow)
		}
		close(stop)
		time.Sleep(2 * flow.InteractiveHold)
		if n := r.most.Load(); n < 3<<20 {
			t.Errorf("long after the last small message %d bytes waited, want nearly 4 MiB again", n)
		}
		st.Reset(http2.ErrCodeCancel)
		rig.close()
		<-rig.served
	})
}

// A long path is used as if every stream had 4 MiB from the start, with and
// without small messages beside the transfer.
func TestLongPathHasItsWindow(t *testing.T) {
	const rtt = 80 * time.Millisecond
	took := func(first int, interactive bool) (d time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.FirstWindow = first
			rig := newRig(t, rigConfig{server: cfg, pair: simPair(simnet.Options{Delay: rtt / 2, Buffer: 64 << 20}),
				handler: func(ctx context.Context, in *Incoming) {
					if in.Authority == "bulk:1" {
						discardHandler(ctx, in)
						return
					}
					echoHandler(ctx, in)
				}})
			stop := make(chan struct{})
			if interactive {
				go chat(t, rig.client, time.Millisecond, stop)
				time.Sleep(20 * rtt)
			}
			began := time.Now()
			st, _, err := rig.client.Open(t.Context(), &Request{Authority: "bulk:1"})
			check(t, err)
			for buf, n := make([]byte, 64<<10), 32<<20; n > 0; n -= len(buf) {
				_, err := st.Write(buf)
				check(t, err)
			}
			st.CloseWrite()
			io.Copy(io.Discard, st)
			d = time.Since(began)
			st.Close()
			close(stop)
			time.Sleep(time.Second)
			rig.close()
		})
		return d
	}
	fixed, alone, beside := took(4<<20, false), took(1<<20, false), took(1<<20, true)
	t.Logf("32 MiB over %v: %v with 4 MiB at once, %v with 1 MiB, %v beside small messages", rtt, fixed, alone, beside)
	const luck = 4 * rtt // how credits and bursts happen to meet
	if alone > fixed+luck {
		t.Errorf("%v with a small first window, want little more than %v", alone, fixed)
	}
	if beside > fixed+2*rtt+luck {
		t.Errorf("%v beside small messages, want little more than %v", beside, fixed)
	}
}

// On a long path a stream does not begin with the small window: an answer of 4 MiB
// takes no round trip more.
func TestStreamOnALongPathHasItsWholeWindowAtOnce(t *testing.T) {
	for rtt, want := range map[time.Duration]int{2 * time.Millisecond: 1 << 20, 80 * time.Millisecond: 4 << 20} {
		synctest.Test(t, func(t *testing.T) {
			rig := newRig(t, rigConfig{pair: simPair(simnet.Options{Delay: rtt / 2}), handler: discardHandler})
			first := open(t, rig.client) // the server knows the path only with the answer to its SETTINGS
			time.Sleep(time.Second)
			st := open(t, rig.client)
			time.Sleep(time.Second)
			rig.server.mu.Lock()
			theirs := rig.server.streams[st.id].recv.window.Size
			rig.server.mu.Unlock()
			if ours, send := st.recv.window.Size, st.send.window; ours != want || theirs != want || send != want {
				t.Errorf("round trip %v: windows %d and %d, %d to send; want %d", rtt, ours, theirs, send, want)
			}
			for _, st := range []*Stream{first, st} {
				endStream(st)
			}
			rig.close()
		})
	}
}
