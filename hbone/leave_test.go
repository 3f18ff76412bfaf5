package hbone

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"golang.org/x/net/http2"
)

// leaving is a raw client that leaves a relayed stream by RST_STREAM(CANCEL)
// without END_STREAM, as a stock one does whose server finished first.
type leaving struct {
	*rawPeer
	s       *Session
	pod     net.Conn
	relayed chan RelayResult
}

// newLeaving opens stream 1 and relays it to a pod, over the pair of connections.
func newLeaving(t testing.TB, cfg Config, pair func(testing.TB) (net.Conn, net.Conn)) *leaving {
	cfg.FirstWindow = 4 << 20 // the client sends all at once, and hears of no credit meanwhile
	t.Helper()
	l := &leaving{relayed: make(chan RelayResult, 1)}
	a, b := pair(t)
	l.pod = b
	l.rawPeer, l.s = rawClient(t, cfg, func(ctx context.Context, in *Incoming) {
		if in.Authority == "echo:1" {
			echoHandler(ctx, in)
			return
		}
		st, err := in.Accept(nil)
		if err != nil {
			t.Error(err)
			return
		}
		l.relayed <- Relay(ctx, st, a)
	})
	t.Cleanup(func() { b.Close() })
	l.connect(1)
	l.kind(http2.FrameHeaders, 1)
	return l
}

// leave sends what and the reset behind it as one write, with END_STREAM between
// them if end.
func (l *leaving) leave(what []byte, end bool, code http2.ErrCode) {
	inOneBurst(l.rawPeer, func(fr *http2.Framer) {
		for len(what) > 0 {
			n := min(len(what), 16<<10)
			fr.WriteData(1, false, what[:n])
			what = what[n:]
		}
		if end {
			fr.WriteData(1, true, nil)
		}
		fr.WriteRSTStream(1, code)
	})
}

// goesOn opens another stream, and expects silence on the first one.
func (l *leaving) goesOn() {
	l.t.Helper()
	l.sync(1)
	l.headers(3, false, ":method", "CONNECT", ":authority", "echo:1")
	l.fr.WriteData(3, true, []byte("next"))
	f := l.next("echo on stream 3", func(f rawFrame) bool {
		if f.StreamID == 1 {
			l.t.Errorf("frame on a stream that was reset: %v", f)
		}
		return f.Type == http2.FrameData && f.StreamID == 3
	})
	if string(f.data) != "next" {
		l.t.Errorf("the next stream echoes %q", f.data)
	}
	l.sync(1)
}

func cancelEnds() Config {
	cfg := DefaultConfig()
	cfg.CancelEnds = true
	return cfg
}

func TestWhatACancelledStreamBroughtIsDelivered(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeCancel, http2.ErrCodeNo} {
		l := newLeaving(t, cancelEnds(), tcpPair)
		go l.leave([]byte("last words"), false, code)
		got, err := io.ReadAll(l.pod)
		if err != nil || string(got) != "last words" {
			t.Errorf("%v: the pod read %q and %v, want all and a FIN", code, got, err)
		}
		l.pod.Write([]byte("to nobody"))
		l.pod.Close()
		if res := <-l.relayed; res.Err != nil || res.ToConn != 10 || res.ToStream != 0 {
			t.Errorf("%v: relay ended with %+v, want 10 bytes to the pod and no error", code, res)
		}
		l.goesOn()
	}
}

// Closing a socket with unread bytes resets it, and a reset overtakes what the
// pod has not yet taken in: the pod talks on, and must be heard out.
func TestWhatAClientThatLeftSentReachesASlowReaderThatTalks(t *testing.T) {
	for name, c := range map[string]struct {
		end bool
		cfg Config
	}{"with END_STREAM": {true, DefaultConfig()}, "without": {false, cancelEnds()}} {
		t.Run(name, func(t *testing.T) {
			l := newLeaving(t, c.cfg, tcpPair)
			want := make([]byte, 3<<20)
			rand.NewChaCha8([32]byte{1}).Read(want)
			l.pod.(*net.TCPConn).SetReadBuffer(32 << 10)
			talk := make([]byte, 300<<10)
			go l.pod.Write(talk)       // the client's window ends before this does
			l.kind(http2.FrameData, 1) // it has begun
			go l.leave(want, c.end, http2.ErrCodeCancel)
			if got, err := readAndTalk(l.pod, talk[:1000]); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("the pod got %d bytes of %d: %v", len(got), len(want), err)
			}
			l.pod.Write(talk)
			l.pod.Close()
			if res := <-l.relayed; res.Err != nil || res.ToConn != int64(len(want)) {
				t.Errorf("relay ended with %+v, want %d bytes to the pod and no error", res, len(want))
			}
			l.fr.WriteWindowUpdate(0, 1<<20)
			l.sync() // what went out before the reset came
			l.goesOn()
		})
	}
}

// readAndTalk reads c slowly until its FIN and answers each piece.
func readAndTalk(c net.Conn, talk []byte) (got []byte, err error) {
	buf := make([]byte, 100<<10)
	for {
		n, err := c.Read(buf)
		got = append(got, buf[:n]...)
		if err == io.EOF {
			return got, nil
		}
		if err == nil {
			_, err = c.Write(talk)
		}
		if err != nil {
			return got, err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// To an application a stream that was cut short must not look complete.
func TestACancelledStreamIsAResetUnlessToldOtherwise(t *testing.T) {
	l := newLeaving(t, DefaultConfig(), tcpPair)
	l.leave([]byte("half"), false, http2.ErrCodeCancel)
	l.pod.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(l.pod); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the application saw %v, want connection reset", err)
	}
	if res := <-l.relayed; !isReset(res.Err) {
		t.Errorf("relay ended with %v, want the peer's reset", res.Err)
	}
	l.goesOn()
}

func TestOtherResetsStayResets(t *testing.T) {
	l := newLeaving(t, cancelEnds(), tcpPair)
	l.leave([]byte("half"), false, http2.ErrCodeConnect)
	l.pod.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadAll(l.pod); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the pod saw %v, want connection reset", err)
	}
	if res := <-l.relayed; !isReset(res.Err) {
		t.Errorf("relay ended with %v, want the peer's reset", res.Err)
	}
}

func isReset(err error) bool {
	var reset *ResetError
	return errors.As(err, &reset) && reset.Remote
}

// The reset may be there before the relay is.
func TestAStreamThatLeftBeforeItsRelayIsDelivered(t *testing.T) {
	gone := make(chan struct{})
	a, pod := tcpPair(t)
	defer pod.Close()
	p, s := rawClient(t, cancelEnds(), func(ctx context.Context, in *Incoming) {
		st, err := in.Accept(nil)
		if err == nil {
			<-gone
			Relay(ctx, st, a)
		}
	})
	l := &leaving{rawPeer: p, s: s}
	l.connect(1)
	l.kind(http2.FrameHeaders, 1)
	l.leave([]byte("early"), false, http2.ErrCodeCancel)
	eventually(t, "reset taken in", func() bool { return s.Streams() == 0 })
	close(gone)
	if got, err := io.ReadAll(pod); err != nil || string(got) != "early" {
		t.Errorf("the pod read %q and %v, want all and a FIN", got, err)
	}
}

// Before the answer CANCEL is no end of anything: the handler is told to stop.
func TestCancelBeforeTheAnswerEndsTheHandler(t *testing.T) {
	told := make(chan error, 1)
	p, _ := rawClient(t, cancelEnds(), func(ctx context.Context, in *Incoming) {
		<-ctx.Done()
		_, err := in.Accept(nil)
		told <- err
	})
	p.connect(1)
	p.fr.WriteRSTStream(1, http2.ErrCodeCancel)
	if err := <-told; !isReset(err) {
		t.Errorf("accept after the client's reset: %v", err)
	}
	p.sync(1)
}

func TestAPodThatNeverEndsIsGivenUp(t *testing.T) {
	for _, c := range []struct {
		name string
		pod  func(net.Conn)
		want time.Duration
	}{
		{"says nothing", func(pod net.Conn) { io.Copy(io.Discard, pod) }, dropTime},
		{"talks on", func(pod net.Conn) {
			io.Copy(io.Discard, pod)
			for {
				if _, err := pod.Write(make([]byte, 100)); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}, dropTime},
		{"floods", func(pod net.Conn) {
			io.Copy(io.Discard, pod)
			for {
				if _, err := pod.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, 0},
		{"reads nothing", func(net.Conn) {}, stallTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLeaving(t, cancelEnds(), simPair(simnet.Options{Buffer: 64 << 10}))
				ended := make(chan struct{})
				go func() { c.pod(l.pod); close(ended) }()
				synctest.Wait()
				begun := time.Now()
				l.leave(make([]byte, 900<<10), false, http2.ErrCodeCancel) // less than what is worth a WINDOW_UPDATE
				<-l.relayed
				if took := time.Since(begun); took != c.want {
					t.Errorf("the relay ended after %v, want %v", took, c.want)
				}
				l.goesOn()
				l.pod.Close()
				<-ended
			})
		})
	}
}
