package nodeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// carried is a connection inside an outer stream that is reset once it is cut.
type carried struct {
	net.Conn
	cut chan struct{}
}

func (c carried) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case <-c.cut:
		return 0, &hbone.ResetError{Code: http2.ErrCodeConnect, Remote: true}
	default:
		return n, err
	}
}

// A gateway that resets the outer stream has cut the way: the application behind it
// has reset nothing.
func TestAResetOfTheOuterStreamIsALostTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := simnet.Pair(simnet.Options{})
		defer far.Close()
		go noWindow(far, time.Millisecond)
		c := carried{near, make(chan struct{})}
		s, err := hbone.NewClient(t.Context(), bare{c}, hbone.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(nil)
		st, _, err := s.Open(t.Context(), &hbone.Request{Authority: "a:1"})
		if err != nil {
			t.Fatal(err)
		}
		app, ours := simnet.Pair(simnet.Options{})
		go func() { io.Copy(io.Discard, app); app.Close() }()
		time.AfterFunc(time.Second, func() { close(c.cut); far.Write([]byte{0}) })
		r := hbone.Relay(t.Context(), st, ours)
		var reset *hbone.ResetError
		if !errors.As(r.Err, &reset) || !reset.Remote {
			t.Fatalf("the relay ended with %v; want the reset of the outer stream in it", r.Err)
		}
		if got := ending(context.Background(), "outbound", st, r.Err); got != resultTunnelLost {
			t.Errorf("%s; want %s", got, resultTunnelLost)
		}
	})
}
