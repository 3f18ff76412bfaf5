package quic

import (
	"context"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// A peer that breaks the rules of HTTP/3 is reported as one that does, not as one that has left in order.
func TestViolationEndsSessionAsFault(t *testing.T) {
	violate := func(q *quicgo.Conn) {
		ctrl, err := q.OpenUniStream()
		check(t, err)
		ctrl.Write(appendFrame([]byte{streamControl}, frameData, 'x'))
	}
	t.Run("client", func(t *testing.T) {
		r := newRig(t, rigConfig{})
		q, err := quicgo.DialAddr(context.Background(), r.listener.Addr().String(), r.clientTLS(), nil)
		check(t, err)
		violate(q)
		select {
		case err := <-r.served:
			if o := hbone.OutcomeOf(err); o != hbone.OutcomeFault {
				t.Errorf("the session of the server ended as %s: %v", o, err)
			}
		case <-time.After(10 * time.Second):
			t.Error("the session of the server is open")
		}
	})
	t.Run("server", func(t *testing.T) {
		r := newRig(t, rigConfig{})
		l, err := quicgo.Listen(udp(t), r.ids.ServerTLS(serverID, nil, Protocols(hbone.ServerProtocols("a"))...), nil)
		check(t, err)
		defer l.Close()
		go func() {
			if q, err := l.Accept(context.Background()); err == nil {
				violate(q)
			}
		}()
		p, err := Dial(context.Background(), udp(t), l.Addr(), r.clientTLS(), DialConfig{})
		check(t, err)
		s, err := hbone.StartClient(p, hbone.Config{})
		check(t, err)
		select {
		case <-s.Done():
			if o := hbone.OutcomeOf(s.Err()); o != hbone.OutcomeFault {
				t.Errorf("the session of the client ended as %s: %v", o, s.Err())
			}
		case <-time.After(10 * time.Second):
			t.Error("the session of the client is open")
			s.Close(nil)
		}
	})
}
