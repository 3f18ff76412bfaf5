package hbone

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// certified is a transport whose peer's certificate expires.
type certified struct {
	plainTransport
	until time.Time
}

func (t certified) Peer() Peer { return Peer{NotAfter: t.until} }

// A server says GOAWAY before a certificate expires, whether the client answers
// the PING in between or not, serves nothing new afterwards, and ends what is still
// open when the grace is over.
func TestAServerSessionEndsWithItsCertificate(t *testing.T) {
	for name, answers := range map[string]bool{"a client that answers": true, "a client that ignores the drain": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var served int
				ended := make(chan error, 10)
				cfg := Config{NotAfter: start.Add(time.Hour), ExpiryGrace: 10 * time.Minute}
				p, s := rawClient(t, cfg, func(ctx context.Context, in *Incoming) {
					served++
					in.Accept(nil)
					<-ctx.Done()
					ended <- context.Cause(ctx)
				})
				p.connect(1)
				p.next("200", func(f rawFrame) bool { return f.StreamID == 1 && f.get(":status") == "200" })
				p.mu.Lock()
				p.undrained = !answers
				p.mu.Unlock()
				for !s.retired() {
					time.Sleep(time.Second)
				}
				first := p.goAway(http2.ErrCodeNo)
				if age := time.Since(start); age > time.Hour || age < 54*time.Minute {
					t.Errorf("GOAWAY after %v, want it within the last tenth of the hour", age)
				}
				last := p.goAway(http2.ErrCodeNo)
				if age := time.Since(start); age > time.Hour || first.n != wire.MaxStreamID || last.n != 1 {
					t.Errorf("final GOAWAY after %v, last streams %d and %d", age, first.n, last.n)
				}
				time.Sleep(time.Hour - time.Since(start))
				p.connect(3)
				if f := p.kind(http2.FrameRSTStream, 3); f.code != http2.ErrCodeRefusedStream {
					t.Errorf("a stream after the certificate has expired: %v, want REFUSED_STREAM", f)
				}
				if served != 1 {
					t.Error("a stream was served after the certificate had expired")
				}
				if err := <-ended; !errors.Is(err, ErrCertificateExpired) || time.Since(start) != 70*time.Minute {
					t.Errorf("the open stream ended after %v with %v, want ErrCertificateExpired after 1h10m", time.Since(start), err)
				}
				<-s.Done()
			})
		})
	}
}

func TestTheEarlierOfBothCertificatesCounts(t *testing.T) {
	now := time.Now()
	for _, c := range []struct{ own, peer, want time.Time }{
		{time.Time{}, time.Time{}, time.Time{}}, {now, time.Time{}, now}, {time.Time{}, now, now},
		{now, now.Add(1), now}, {now.Add(1), now, now},
	} {
		s := &Session{cfg: Config{NotAfter: c.own}, peerID: Peer{NotAfter: c.peer}}
		if got := s.expiresAt(); !got.Equal(c.want) {
			t.Errorf("own %v, peer %v: %v, want %v", c.own, c.peer, got, c.want)
		}
	}
}

// A client opens nothing on a session whose peer's certificate has expired; what is
// open goes on for the grace.
func TestAClientSessionEndsWithThePeersCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a, b := simnet.Pair(simnet.Options{})
		server := NewServer(plainTransport{b}, DefaultConfig(), echoHandler)
		go server.Serve(t.Context())
		client, err := NewClient(t.Context(), certified{plainTransport{a}, start.Add(time.Hour)}, Config{ExpiryGrace: time.Minute})
		check(t, err)
		st := open(t, client)
		time.Sleep(time.Hour - time.Since(start))
		if _, err := client.Start(&Request{Authority: "app.default:80"}); err == nil {
			t.Error("a stream was opened on a session whose peer's certificate has expired")
		}
		st.Write([]byte("still here"))
		if _, err := io.ReadFull(st, make([]byte, 10)); err != nil {
			t.Errorf("within the grace: %v", err)
		}
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, ErrCertificateExpired) || time.Since(start) != 61*time.Minute {
			t.Errorf("the open stream ended after %v with %v, want ErrCertificateExpired after 1h1m", time.Since(start), err)
		}
	})
}

// Nobody holds an idle session for the grace, and no timer outlives a session.
func TestAnIdleSessionEndsWhenItsCertificateDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		_, s := rawClient(t, Config{NotAfter: start.Add(time.Hour)}, nil)
		<-s.Done()
		if age := time.Since(start); age > time.Hour {
			t.Errorf("ended after %v", age)
		}
		_, early := rawClient(t, Config{NotAfter: start.Add(24 * time.Hour)}, nil)
		synctest.Wait()
		early.Close(nil)
		early.mu.Lock()
		defer early.mu.Unlock()
		if early.life.expiryTimer.Stop() {
			t.Error("the timer of a closed session runs")
		}
	})
}
