package hbone

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// A session without streams tells who has ended it: this side, the peer in order, or the
// peer without a word, as a process that was killed.
func TestASessionTellsWhoHasClosedIt(t *testing.T) {
	for name, c := range map[string]struct {
		mute   bool // the peer has not sent SETTINGS
		end    func(client, server *Session, conn *simnet.Conn)
		byPeer bool
	}{
		"this side":                {end: func(client, _ *Session, _ *simnet.Conn) { client.Close(nil) }},
		"the peer in order":        {end: func(_, server *Session, _ *simnet.Conn) { server.Close(nil) }},
		"the peer without GOAWAY":  {end: func(_, _ *Session, conn *simnet.Conn) { conn.Close() }, byPeer: true},
		"the peer before SETTINGS": {end: func(_, _ *Session, conn *simnet.Conn) { conn.Read(make([]byte, 1024)); conn.Close() }, byPeer: true, mute: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := simnet.Pair(simnet.Options{})
				server := NewServer(plainTransport{b}, DefaultConfig(), nil)
				ended := make(chan struct{})
				go func() {
					if !c.mute {
						server.Serve(context.Background())
					}
					close(ended)
				}()
				client, err := StartClient(plainTransport{a}, DefaultConfig())
				check(t, err)
				synctest.Wait()
				c.end(client, server, b)
				<-client.Closed()
				<-ended
				if errors.Is(client.Err(), ErrPeerClosed) != c.byPeer || c.byPeer && OutcomeOf(client.Err()) != OutcomeOrderly {
					t.Errorf("%v (%v); closed by its peer without GOAWAY: want %v, and nobody cut off", client.Err(), OutcomeOf(client.Err()), c.byPeer)
				}
				if _, _, err := client.Open(t.Context(), &Request{Authority: "app.default:80"}); !errors.Is(err, ErrRetryable) || errors.Is(err, ErrPeerClosed) != c.byPeer {
					t.Errorf("a stream: %v; want it retryable, and the same cause", err)
				}
			})
		})
	}
}
