package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

func TestServicesThatAreGoneAreForgottenAndWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newBeliever(t)
		g.budget = retrybudget.New(1, 0)
		svc := g.store.Current().Service("hello.default.svc.cluster.local")
		x := route.Exported{Service: svc, Port: mesh.Port{Service: 80, Target: 8080}, Members: g.store.Current().Members(svc, "west")}
		l, ok := g.backends.choose(g.backends.Offer(x, time.Now()), picker.Request{}, time.Now())
		if !ok {
			t.Fatal("no choice between two healthy pods")
		}
		g.backends.release(l, 0, "", time.Now())
		g.rediscover(discovery.Everything(), time.Now())
		if n := g.backends.Services(); n != 1 {
			t.Errorf("%d indexes of a service that is still listed; want 1", n)
		}
		empty, problems := discovery.Build(2, discovery.DefaultConfig())
		if problems != nil {
			t.Fatal(problems)
		}
		g.store.Swap(empty)
		g.rediscover(discovery.Everything(), time.Now())
		if n := g.backends.Services(); n != 0 {
			t.Errorf("%d indexes of a service that is gone", n)
		}
		if n := len(g.deliveries.ports) + len(g.deliveries.exports); n != 0 || len(g.withdrawn) != 2 {
			t.Errorf("%d records of a service that is gone, withdrawn %v; want none, its export and the health of hello:80", n, g.withdrawn)
		}
	})
}
