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

// A session that is retired between the moment when a call was given it and the one when
// it opens its stream serves that call: it is closed behind it.
func TestASessionThatIsRetiredServesWhoHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t, cfg: hbone.DefaultConfig(), delay: time.Millisecond}
		p := New(Config{})
		opened := 0
		var st *hbone.Stream
		err := p.Use(t.Context(), Key{}, b.dial, func(s *hbone.Session) (err error) {
			opened++
			p.RetireKey(Key{})
			synctest.Wait()
			st, _, err = s.Open(t.Context(), poolReq)
			return err
		})
		if n := b.dials.Load(); err != nil || opened != 1 || n != 1 {
			t.Fatalf("%v after %d attempts and %d dials; want one of each and no error", err, opened, n)
		}
		s := st.Session()
		endStream(st)
		<-s.Closed()
		p.Close()
		p.Wait(t.Context())
		b.stop()
	})
}
