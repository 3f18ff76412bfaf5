package hbone

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// A client that is declined knows that nothing was done for it, and why, whenever it
// asks; the server keeps nothing.
func TestADeclinedClientMayAskElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{})
		ended := make(chan struct{})
		go func() {
			NewServer(plainTransport{b}, DefaultConfig(), nil).Decline(context.Background(), "no room")
			close(ended)
		}()
		client, err := StartClient(plainTransport{a}, DefaultConfig())
		check(t, err)
		_, _, err = client.Open(t.Context(), &Request{Authority: "app.default:80"})
		var away *GoAwayError
		if !errors.Is(err, ErrRetryable) || !errors.As(err, &away) || away.Code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("a stream: %v, want a retryable GOAWAY(ENHANCE_YOUR_CALM)", err)
		}
		client.Close(nil)
		<-ended
	})
}

// A server session that fails before Serve sends SETTINGS first (RFC 9113 §3.4), so that its client receives the reason.
func TestGoAwayBeforeServeFollowsSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := simnet.Pair(simnet.Options{})
		server := NewServer(plainTransport{b}, DefaultConfig(), nil)
		server.GoAway(http2.ErrCodeEnhanceYourCalm, "no room")
		client, err := StartClient(plainTransport{a}, DefaultConfig())
		check(t, err)
		served := make(chan struct{})
		go func() {
			server.Serve(context.Background())
			close(served)
		}()
		<-client.Done()
		var away *GoAwayError
		if err := client.Err(); !errors.As(err, &away) || away.Code != http2.ErrCodeEnhanceYourCalm {
			t.Errorf("the client ended with %v, want GOAWAY(ENHANCE_YOUR_CALM)", err)
		}
		client.Close(nil)
		<-served
	})
}
