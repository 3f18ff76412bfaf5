package hbone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// An application answers, sends its FIN and closes with bytes unread, which is a reset right behind the FIN. The client
// reads the answer and then an end, as from one connection, and may not write any more.
func TestAnEndBeforeAResetArrivesAsAnEnd(t *testing.T) {
	answer := strings.Repeat("x", 4<<10)
	p := newProxied(t, rigConfig{})
	for range 30 {
		client, app, result := p.connect(t)
		io.WriteString(client, strings.Repeat("r", 8<<10))
		io.ReadFull(app, make([]byte, 1<<10))
		time.Sleep(2 * time.Millisecond) // the rest is there, unread
		io.WriteString(app, answer)
		app.CloseWrite()
		app.Close()
		for side, of := range map[string]chan RelayResult{"client": result, "server": p.results} {
			if res := <-of; res.Err == nil {
				t.Errorf("the %s's relay ended without an error: the request was not taken", side)
			}
		}
		client.SetReadDeadline(time.Now().Add(5 * time.Second))
		if got, err := io.ReadAll(client); string(got) != answer || err != nil {
			t.Errorf("the client read %d of %d bytes, then %v", len(got), len(answer), err)
		}
		hearsReset(t, client)
	}
}

// ending reads the stream to its first end, END_STREAM (ended) or a reset, and says how many bytes came before.
func (p *rawPeer) ending(id uint32) (n int, ended bool) {
	p.t.Helper()
	for {
		f := p.next("an end", func(f rawFrame) bool {
			return f.StreamID == id && (f.Type == http2.FrameData || f.Type == http2.FrameRSTStream)
		})
		if f.Type == http2.FrameRSTStream {
			return n, false
		}
		if n += len(f.data); f.Flags.Has(http2.FlagDataEndStream) {
			return n, true
		}
	}
}

// What an application has sent before its FIN is waited for when it resets behind that: the stream sends it as its peer
// gives credit, then END_STREAM, then RST_STREAM. A write is who is told of the reset, or nobody.
func TestAnEndBeforeAResetWaitsForCredit(t *testing.T) {
	const sent, window = 3000, 1000
	for name, told := range map[string]bool{"a write is told": true, "nobody is told": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
			st, id := p.openRaw(s)
			app, ours := tcpPair(t)
			result := make(chan RelayResult, 1)
			go func() { result <- Relay(context.Background(), st, ours) }()
			app.Write(make([]byte, sent))
			p.collect(id, window)
			finish(t, app)
			app.(interface{ SetLinger(int) error }).SetLinger(0)
			app.Close()
			sock, _ := socketOf(ours)
			eventually(t, "the reset is here", func() bool { return isClosed(sock) })
			if told {
				p.fr.WriteData(id, false, []byte("nobody reads that"))
				p.sync()
			}
			time.Sleep(3 * stallCheck / 2)
			p.fr.WriteWindowUpdate(id, sent)
			if n, ended := p.ending(id); n != sent-window || !ended {
				t.Errorf("%d of %d bytes with credit, and an end: %v", n, sent-window, ended)
			}
			if f := p.kind(http2.FrameRSTStream, id); f.code != http2.ErrCodeConnect {
				t.Errorf("%v behind the end, want CONNECT_ERROR", f)
			}
			if res := <-result; res.Err == nil || res.ToStream != sent {
				t.Errorf("the relay ended with %v after %d of %d bytes", res.Err, res.ToStream, sent)
			}
		})
	}
}

// It waits for as long as an application may be slow to read, and then it is lost, and no end.
func TestAnEndBeforeAResetDoesNotWaitForEver(t *testing.T) {
	const sent, window = 3000, 1000
	for name, told := range map[string]bool{"a write is told": true, "nobody is told": false} {
		for _, wait := range []time.Duration{stallTime / 2, 2 * stallTime} {
			t.Run(fmt.Sprint(name, ", credit after ", wait), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p, s := rawServer(t, DefaultConfig(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})
					st, id := p.openRaw(s)
					app, result := relayed(t, st, memoryPair)
					app.Write(make([]byte, sent))
					p.collect(id, window)
					finish(t, app)
					app.(interface{ SetLinger(int) error }).SetLinger(0)
					app.Close()
					if told {
						p.fr.WriteData(id, false, []byte("nobody reads that"))
						synctest.Wait()
					}
					time.Sleep(wait)
					whole := wait < stallTime
					want := 0
					if whole {
						p.fr.WriteWindowUpdate(id, sent)
						want = sent - window
					}
					if n, ended := p.ending(id); n != want || ended != whole {
						t.Errorf("%d bytes behind the first window and an end: %v; want %d and %v", n, ended, want, whole)
					}
					if whole && !told { // of a connection in memory nobody asks whether it was reset behind its end
						p.headers(id, true, "x", "y")
					}
					<-result
				})
			})
		}
	}
}

// Whoever has taken the error of a reset before the relay began may have taken one of a reset without a FIN: a write that
// is told EPIPE then says nothing about an end.
func TestAResetThatWasTakenBeforeIsNoEndThoughAWriteIsToldEPIPE(t *testing.T) {
	p, s := rawServer(t, DefaultConfig())
	st, id := p.openRaw(s)
	app, ours := tcpPair(t)
	app.(interface{ SetLinger(int) error }).SetLinger(0)
	app.Close()
	sock, _ := socketOf(ours)
	eventually(t, "the reset is here", func() bool { return isClosed(sock) })
	if _, err := ours.Write([]byte("x")); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the first write is told %v", err)
	}
	p.fr.WriteData(id, false, []byte("something to write"))
	p.sync()
	res := Relay(context.Background(), st, ours)
	f := p.next("the end of the stream", func(f rawFrame) bool { return f.StreamID == id && f.Type != http2.FrameHeaders })
	if f.Type != http2.FrameRSTStream || f.code != http2.ErrCodeConnect {
		t.Errorf("%v, want RST_STREAM(CONNECT_ERROR) without an end", f)
	}
	if res.Err == nil {
		t.Error("the relay ended without an error")
	}
}
