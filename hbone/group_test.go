package hbone

import (
	"context"
	"net"
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
