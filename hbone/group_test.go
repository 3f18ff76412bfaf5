package hbone

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipeTransport is the least Transport: no TLS, one write per burst.
type pipeTransport struct{ net.Conn }

func (p pipeTransport) WriteBurst(b []byte) error { _, err := p.Write(b); return err }
func (pipeTransport) Peer() Peer                  { return Peer{} }

func TestGroupDrainsWhoIsThereAndWhoComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Group
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan struct{}, 2)
		join := func() *Session {
			a, b := net.Pipe()
			go func() {
				g.Serve(ctx, NewServer(pipeTransport{b}, DefaultConfig(), func(_ context.Context, in *Incoming) {
					s, err := in.Accept(nil)
					if err == nil {
						s.Read(make([]byte, 1))
						s.Close()
					}
				}))
				ended <- struct{}{}
			}()
			c, err := NewClient(ctx, pipeTransport{a}, DefaultConfig())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := join()
		stream, _, err := first.Open(ctx, &Request{Authority: "a:1"})
		if err != nil || g.Len() != 1 {
			t.Fatalf("open: %v, %d sessions; want 1", err, g.Len())
		}
		drained := make(chan struct{})
		go func() { g.Drain(ctx); close(drained) }()
		synctest.Wait()
		time.Sleep(time.Second)
		select {
		case <-drained:
			t.Fatal("Drain returned while a stream was open")
		default:
		}
		late := join()
		time.Sleep(time.Second)
		if late.CanOpen() {
			t.Error("a session that came while the group drains still takes streams")
		}
		stream.Close()
		<-drained
		<-ended
		<-ended
		if g.Len() != 0 {
			t.Errorf("%d sessions are left", g.Len())
		}
	})
}

// A session that is severed has GOAWAY at once, and its streams have their time, unless what
// ended it is over by then.
func TestGroupSeversSessionsAfterDrain(t *testing.T) {
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var g Group
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 2)
			join := func() (client, server *Session) {
				a, b := net.Pipe()
				server = NewServer(pipeTransport{b}, DefaultConfig(), func(ctx context.Context, in *Incoming) {
					if s, err := in.Accept(nil); err == nil {
						s.Read(make([]byte, 1))
						s.Close()
					}
				})
				go func() { ended <- g.Serve(ctx, server) }()
				c, err := NewClient(ctx, pipeTransport{a}, DefaultConfig())
				if err != nil {
					t.Fatal(err)
				}
				return c, server
			}
			client, server := join()
			other, _ := join()
			for _, c := range []*Session{client, other} {
				if _, _, err := c.Open(ctx, &Request{Authority: "a:1"}); err != nil {
					t.Fatal(err)
				}
			}
			cause := errors.New("unlinked")
			var linked atomic.Bool
			match := func(s *Session) bool { return s == server && !linked.Load() }
			if n, more := g.Sever(match, 10*time.Second, cause), g.Sever(match, time.Hour, cause); n != 1 || more != 0 {
				t.Errorf("%d sessions begin to end, and then %d; want 1 and 0", n, more)
			}
			time.Sleep(9 * time.Second)
			if client.CanOpen() || !other.CanOpen() || server.Err() != nil || client.Streams() != 1 {
				t.Errorf("before the drain is over: the session takes streams %t, the other one %t, ended by %v with %d streams", client.CanOpen(), other.CanOpen(), server.Err(), client.Streams())
			}
			linked.Store(again)
			time.Sleep(2 * time.Second)
			if err := server.Err(); again != (err == nil) || !again && !errors.Is(err, cause) {
				t.Errorf("linked again %t: the session has ended by %v", again, err)
			}
			client.Close(nil)
			other.Close(nil)
			<-ended
			<-ended
		})
	}
}
