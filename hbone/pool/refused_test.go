package pool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// A peer that declines a new session, for a limit of its client, would decline the next
// one too: who asked goes elsewhere at once.
func TestADeclinedSessionIsNotDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dials := 0
		dial := func(context.Context) (*hbone.Session, error) {
			dials++
			x, y := simnet.Pair(simnet.Options{Delay: time.Millisecond})
			go hbone.NewServer(pipeTransport{y}, hbone.DefaultConfig(), nil).Decline(context.Background(), "no room")
			return hbone.StartClient(pipeTransport{x}, hbone.DefaultConfig())
		}
		p := New(Config{})
		_, _, err := p.Open(t.Context(), Key{}, dial, poolReq)
		var away *hbone.GoAwayError
		if !errors.As(err, &away) || away.Code != http2.ErrCodeEnhanceYourCalm || dials != 1 {
			t.Errorf("%v after %d dials; want GOAWAY(ENHANCE_YOUR_CALM) after one", err, dials)
		}
		p.Close()
		time.Sleep(time.Minute)
	})
}
