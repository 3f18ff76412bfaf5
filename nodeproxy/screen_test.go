package nodeproxy

import (
	"context"
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
	"github.com/isthmus-mesh/isthmus/mesh"
)

// A node proxy without time refuses a CONNECT when it arrives, with a reason that blames
// nobody, and holds nothing of it; with time it goes on to the handler. One of a client that
// would not come again, as a stock one, is refused by nobody: it waits until there is time.
func TestAConnectIsAdmittedWhenItArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shop = "spiffe://cluster.local/ns/default/sa/shop"
		p := newProxy(DefaultConfig(), zerolog.Nop())
		defer p.stop()
		full := true
		p.admit = func(who string) (overload.Work, error) {
			if who != shop {
				t.Errorf("turns are by %q, want the client's identity", who)
			}
			if full {
				return overload.Work{}, overload.ErrOverloaded
			}
			return p.load.TryAdmit(who)
		}
		room := make(chan struct{})
		p.hold = func(ctx context.Context, who string) (overload.Work, error) {
			select {
			case <-room:
				return p.load.TryAdmit(who)
			case <-ctx.Done():
				return overload.Work{}, context.Cause(ctx)
			}
		}
		client := admission.Client{Identity: shop, Address: netip.MustParseAddr("10.0.0.1")}
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
		stock := make(chan error, 2)
		ask := func(ctx context.Context) {
			_, _, err := c.Open(ctx, &hbone.Request{Authority: "10.0.0.2:80", Header: hbone.Header{header.NameBaggage: "k8s.cluster.name=east"}})
			stock <- err
		}
		go ask(t.Context())
		synctest.Wait()
		leaving, leave := context.WithCancel(t.Context())
		go ask(leaving)
		synctest.Wait()
		leave()
		synctest.Wait()
		if len(stock) != 1 || server.Streams() != 1 {
			t.Fatalf("%d stock clients are answered, and %d wait; want the one that left, and the other", len(stock), server.Streams())
		}
		<-stock
		ours := p.headers(caller{source: &mesh.Workload{}, snap: p.store.Current()})
		for _, want := range []header.Reason{header.ReasonOverload, header.ReasonNotLocal} { // by the limit; by the handler
			_, _, err := c.Open(t.Context(), &hbone.Request{Authority: "10.0.0.2:80", Header: ours})
			var status *hbone.StatusError
			if !errors.As(err, &status) || status.Status != 503 || status.Reason() != want {
				t.Errorf("%v; want 503 %s", err, want)
			} else if f := innerResponse(7, hopSingle, err); want == header.ReasonOverload && (f.fault || !f.overload()) {
				t.Errorf("%+v; want no fault, and overload", f)
			}
			full = false
		}
		close(room)
		var status *hbone.StatusError
		if err := <-stock; !errors.As(err, &status) || status.Reason() != header.ReasonNotLocal {
			t.Errorf("a stock client, when there is time: %v; want 503 %s", err, header.ReasonNotLocal)
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

// A node proxy says that it comes again after overload only if its retries let it: who says
// so is refused at once, and with retry.attempts 0 the connection is lost then.
func TestWhoNeverRepeatsDoesNotSayThatItComesAgain(t *testing.T) {
	for attempts, want := range []bool{false, true} {
		cfg := DefaultConfig()
		cfg.Retry.Attempts = attempts
		p := newProxy(cfg, zerolog.Nop())
		h := p.headers(caller{snap: p.store.Current(), source: &mesh.Workload{}})
		p.stop()
		if v, sent := h[header.NameRepeats]; sent != want || header.Repeats(v, header.ReasonOverload) != want {
			t.Errorf("retry.attempts %d: %s is %q, sent: %v; want it sent: %v", attempts, header.NameRepeats, v, sent, want)
		}
	}
}
