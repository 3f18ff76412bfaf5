package nodeproxy

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// A node proxy without time refuses a CONNECT when it arrives, with a reason that blames
// nobody, and holds nothing of it; with time it goes on to the handler.
func TestAConnectIsAdmittedWhenItArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProxy(DefaultConfig(), zerolog.Nop())
		defer p.stop()
		full := true
		p.admit = func() (overload.Work, error) {
			if full {
				return overload.Work{}, overload.ErrOverloaded
			}
			return p.load.TryAdmit()
		}
		client := admission.Client{Identity: "spiffe://cluster.local/ns/default/sa/shop", Address: netip.MustParseAddr("10.0.0.1")}
		session, err := p.clients.Session(client, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer session.Release()
		in := &inbound{p: p, uid: "gone"}
		near, far := simnet.Pair(simnet.Options{})
		cfg := hbone.DefaultConfig()
		cfg.Screen = func(req *hbone.Incoming) hbone.Handler { return in.screen(req, client, session) }
		server := hbone.NewServer(bare{far}, cfg, nil)
		served := make(chan error, 1)
		go func() { served <- server.Serve(t.Context()) }()
		c, err := hbone.NewClient(t.Context(), bare{near}, hbone.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []header.Reason{header.ReasonOverload, header.ReasonNotLocal} { // by the limit; by the handler
			_, _, err := c.Open(t.Context(), &hbone.Request{Authority: "10.0.0.2:80"})
			var status *hbone.StatusError
			if !errors.As(err, &status) || status.Status != 503 || status.Reason() != want {
				t.Errorf("%v; want 503 %s", err, want)
			} else if f := innerResponse(7, hopSingle, err); want == header.ReasonOverload && (f.fault || !f.overload()) {
				t.Errorf("%+v; want no fault, and overload", f)
			}
			full = false
		}
		synctest.Wait()
		if n := server.Streams(); n != 0 {
			t.Errorf("%d streams are left", n)
		}
		c.Close(nil)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
