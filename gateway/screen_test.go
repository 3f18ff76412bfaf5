package gateway

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
)

// bare is a connection as a transport, without TLS.
type bare struct{ net.Conn }

func (b bare) Peer() hbone.Peer          { return hbone.Peer{} }
func (b bare) WriteBurst(p []byte) error { _, err := b.Write(p); return err }

// A gateway without time refuses at once the CONNECT of a client that comes again by
// itself, and one of another client waits until there is time; what is refused or left
// holds nothing.
func TestAGatewayWithoutTimeRefusesOnlyClientsThatComeAgain(t *testing.T) {
	g, _ := lateGateway(t, false)
	g.store = &discovery.Store{}
	synctest.Test(t, func(t *testing.T) {
		g.clients = admission.NewGuard(admission.DefaultConfig(), 1<<20, prometheus.NewRegistry(), zerolog.Nop())
		g.background = t.Context()
		const shop = "spiffe://cluster.local/ns/default/sa/shop"
		full, room := true, make(chan struct{})
		g.admit = func(who string) (overload.Work, error) {
			if who != shop {
				t.Errorf("turns are by %q, want the client's identity", who)
			}
			if full {
				return overload.Work{}, overload.ErrOverloaded
			}
			return g.load.TryAdmit(who)
		}
		g.hold = func(ctx context.Context, who string) (overload.Work, error) {
			select {
			case <-room:
				return g.load.TryAdmit(who)
			case <-ctx.Done():
				return overload.Work{}, context.Cause(ctx)
			}
		}
		client := admission.Client{Identity: shop}
		session, err := g.clients.Session(client, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer session.Release()
		near, far := simnet.Pair(simnet.Options{})
		cfg := hbone.DefaultConfig()
		cfg.Screen = func(in *hbone.Incoming) hbone.Handler { return g.screen(in, client, session) }
		server := hbone.NewServer(bare{far}, cfg, nil)
		served := make(chan error, 1)
		go func() { served <- server.Serve(t.Context()) }()
		c, err := hbone.NewClient(t.Context(), bare{near}, hbone.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		open := func(ctx context.Context, h hbone.Header) *hbone.StatusError {
			_, _, err := c.Open(ctx, &hbone.Request{Authority: "hello:80", Header: h})
			var status *hbone.StatusError
			errors.As(err, &status)
			return status
		}
		want := func(who string, got *hbone.StatusError, reason header.Reason) {
			t.Helper()
			if got == nil || got.Reason() != reason {
				t.Errorf("%s: %v; want %s", who, got, reason)
			}
		}
		stock := make(chan *hbone.StatusError, 2)
		go func() { stock <- open(t.Context(), nil) }()
		leaving, leave := context.WithCancel(t.Context())
		go func() { stock <- open(leaving, nil) }()
		synctest.Wait()
		leave()
		synctest.Wait()
		if len(stock) != 1 || server.Streams() != 1 {
			t.Fatalf("%d stock clients are answered, and %d wait; want the one that left, and the other", len(stock), server.Streams())
		}
		<-stock
		ours := hbone.Header{header.NameRepeats: string(header.ReasonOverload)}
		want("ours", open(t.Context(), ours), header.ReasonOverload)
		full = false
		want("ours, when there is time", open(t.Context(), ours), header.ReasonUnknownService)
		close(room)
		want("a stock one, when there is time", <-stock, header.ReasonUnknownService)
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
