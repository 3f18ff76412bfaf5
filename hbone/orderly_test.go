package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// finish sends a FIN on c.
func finish(t testing.TB, c net.Conn) {
	t.Helper()
	check(t, c.(interface{ CloseWrite() error }).CloseWrite())
}

// Both ends of a connection end in order, and what the application sent is left unread
// for want of credit for longer than anybody asks whether it was reset. None of it is
// dropped.
func TestAnOrderlyEndWaitsForCredit(t *testing.T) {
	const sent, window = 3000, 1000
	for name, inTurn := range map[string]func(peer, app func()){
		"the peer ends first":        func(peer, app func()) { peer(); app() },
		"the application ends first": func(peer, app func()) { app(); peer() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
				st, id := p.openRaw(s)
				app, result := relayed(t, st, memoryPair)
				inTurn(func() {
					p.headers(id, true, "x", "y")
					if got, err := io.ReadAll(app); len(got) > 0 || err != nil {
						t.Errorf("the application read %q, %v, want the peer's end", got, err)
					}
				}, func() {
					app.Write(make([]byte, sent))
					finish(t, app)
					synctest.Wait()
				})
				p.collect(id, window)
				time.Sleep(5 * stallCheck)
				p.fr.WriteWindowUpdate(id, sent)
				p.collect(id, sent-window)
				if res := <-result; res.Err != nil || res.ToStream != sent {
					t.Errorf("the relay ended with %v after %d of %d bytes", res.Err, res.ToStream, sent)
				}
			})
		})
	}
}

// The kernel's state CLOSE, of which the one above is a model, comes of two FINs too.
func TestASocketThatEndedInOrderWasNotReset(t *testing.T) {
	for name, inTurn := range map[string]func(ours, app func()){
		"ours comes first":      func(ours, app func()) { ours(); app() },
		"the other comes first": func(ours, app func()) { app(); ours() },
	} {
		t.Run(name, func(t *testing.T) {
			p, s := rawServer(t, DefaultConfig())
			st, _ := p.openRaw(s)
			app, ours := tcpPair(t)
			defer app.Close()
			defer ours.Close()
			k := newSink(st, ours)
			src := newSocketSource(k)
			app.Write([]byte("unread"))
			inTurn(func() { k.finish(io.EOF) }, func() { finish(t, app) })
			eventually(t, "the state is CLOSE", func() bool { return isClosed(k.sock) })
			if err := src.wasReset(); err != nil || k.err != nil {
				t.Errorf("after two FINs: %v, %v", err, k.err)
			}
			if got, err := io.ReadAll(ours); string(got) != "unread" || err != nil {
				t.Errorf("read %q, %v behind two FINs", got, err)
			}
		})
	}
}

// An application that was sent the peer's end and resets: what it sent before is passed
// on when there is credit, as a socket has it read, and then its reset.
func TestAResetBehindThePeersEndComesAfterTheBytes(t *testing.T) {
	const sent, window = 3000, 1000
	for name, pair := range map[string]func(testing.TB) (net.Conn, net.Conn){"socket": tcpPair, "memory": memoryPair} {
		t.Run(name, func(t *testing.T) {
			p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
			st, id := p.openRaw(s)
			app, ours := pair(t)
			result := make(chan RelayResult, 1)
			go func() { result <- Relay(context.Background(), st, ours) }()
			p.headers(id, true, "x", "y")
			if got, err := io.ReadAll(app); len(got) > 0 || err != nil {
				t.Errorf("the application read %q, %v, want the peer's end", got, err)
			}
			app.Write(make([]byte, sent))
			p.collect(id, window)
			app.(interface{ SetLinger(int) error }).SetLinger(0)
			app.Close()
			sock, _ := socketOf(ours)
			eventually(t, "the reset is here", func() bool { return isClosed(sock) })
			p.fr.WriteWindowUpdate(id, sent)
			p.collect(id, sent-window)
			if f := p.kind(http2.FrameRSTStream, id); f.code != http2.ErrCodeConnect {
				t.Errorf("%v behind the bytes, want CONNECT_ERROR", f)
			}
			if res := <-result; !errors.Is(res.Err, syscall.ECONNRESET) || res.ToStream != sent {
				t.Errorf("the relay ended with %v after %d of %d bytes, want ECONNRESET", res.Err, res.ToStream, sent)
			}
		})
	}
}

func isClosed(s socket) (closed bool) {
	if s.mem != nil {
		return s.closed(0)
	}
	s.raw.Control(func(fd uintptr) { closed = s.closed(fd) })
	return closed
}
