package boundtoken

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
	"github.com/isthmus-mesh/isthmus/identity/istioca"
)

var td = spiffeid.RequireTrustDomainFromString("cluster.local")

func identityOf(td spiffeid.TrustDomain, a pods.Account) spiffeid.ID {
	return spiffeid.RequireFromSegments(td, "ns", a.Namespace, "sa", a.Name)
}

// newCA returns a world whose Reviewer is that of a CA, and its Authorizer.
func newCA(t testing.TB) (*world, Authorizer) {
	w := newWorld(t)
	a := NewAuthorizer(w.server, w.index, td, nodeproxy, []pods.Account{gateways, controller}, "", zerolog.Nop(), nil)
	w.Reviewer = a.Reviewer
	return w, a
}

func forCA(x *token) { x.audiences = []string{CAAudience} }

func TestWhoMayHaveWhichCertificate(t *testing.T) {
	w, a := newCA(t)
	np := w.run(nodeproxy, "np-1", "uid-np", "node-1", forCA)
	gw := w.run(gateways, "gw-1", "uid-gw", "node-1", forCA)
	ct := w.run(controller, "ct-1", "uid-ct", "node-2", forCA)
	here := w.run(shop, "shop-1", "uid-shop", "node-1", forCA)
	elsewhere := pods.Account{Namespace: "demo", Name: "stock"}
	w.run(elsewhere, "stock-1", "uid-stock", "node-2")
	for name, x := range map[string]struct {
		token string
		asks  spiffeid.ID
		ok    bool
	}{
		"a node proxy, itself":                              {np, identityOf(td, nodeproxy), true},
		"a node proxy, a pod of its node":                   {np, identityOf(td, shop), true},
		"a node proxy, a pod of another node":               {np, identityOf(td, elsewhere), false},
		"a node proxy, nobody":                              {np, identityOf(td, pods.Account{Namespace: "demo", Name: "none"}), false},
		"a node proxy, the gateway beside it":               {np, identityOf(td, gateways), false},
		"a node proxy, the controller":                      {np, identityOf(td, controller), false},
		"a node proxy, a pod of its node in another domain": {np, identityOf(spiffeid.RequireTrustDomainFromString("other"), shop), false},
		"a gateway, itself":                                 {gw, identityOf(td, gateways), true},
		"a gateway, a pod of its node":                      {gw, identityOf(td, shop), false},
		"a gateway, the node proxy":                         {gw, identityOf(td, nodeproxy), false},
		"a gateway, the controller":                         {gw, identityOf(td, controller), false},
		"a gateway, itself in another domain":               {gw, identityOf(spiffeid.RequireTrustDomainFromString("other"), gateways), false},
		"the controller, itself":                            {ct, identityOf(td, controller), true},
		"the controller, the gateway":                       {ct, identityOf(td, gateways), false},
	} {
		c, err := a.Authenticate(t.Context(), home, x.token)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := c.May(x.asks); (err == nil) != x.ok {
			t.Errorf("%s: %v; want allowed: %t", name, err, x.ok)
		}
	}
	if _, err := a.Authenticate(t.Context(), home, here); err == nil || errors.Is(err, istioca.ErrUnavailable) {
		t.Errorf("a pod that asks for itself: %v; want it refused for good", err)
	}
	c, err := a.Authenticate(t.Context(), home, np)
	if err != nil {
		t.Fatal(err)
	}
	w.end(shop, "shop-1", "uid-shop")
	if c.May(identityOf(td, shop)) == nil {
		t.Error("a node proxy gets the certificate of a pod that is gone")
	}
	w.server.set(func() { w.server.away = errors.New("connection refused") })
	if _, err := a.Authenticate(t.Context(), home, w.token(nodeproxy, "np-1", "uid-np", "node-1", forCA, func(x *token) { x.expires = x.expires.Add(time.Minute) })); !errors.Is(err, istioca.ErrUnavailable) {
		t.Errorf("without the API server and its keys: %v; want that it cannot be told now", err)
	}
}

// model says who may be whom, from nothing but which pods there are.
type model struct {
	pods map[string]modelPod // by UID
}

type modelPod struct {
	account    pods.Account
	name, node string
}

// may is the rule: no certificate of what is not on the node of who asks.
func (m model) may(uid string, asks pods.Account) bool {
	p, there := m.pods[uid]
	switch {
	case !there:
		return false
	case p.account == asks:
		return p.account == nodeproxy || p.account == gateways || p.account == controller
	case p.account != nodeproxy || asks == gateways || asks == controller:
		return false
	}
	for _, o := range m.pods {
		if o.node == p.node && o.account == asks {
			return true
		}
	}
	return false
}

// Random pods come, go and move between nodes under the same names, while tokens of all
// pods that ever were are shown: a certificate is given exactly where the model says so,
// whether or not the API server answers.
func TestNobodyEverGetsACertificateOfWhatIsNotOnItsNode(t *testing.T) {
	issued := 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		w, a := newCA(t)
		w.fetch()
		m := model{map[string]modelPod{}}
		accounts := []pods.Account{nodeproxy, gateways, controller, shop, {Namespace: "demo", Name: "stock"}, {Namespace: "shop", Name: "shop"}}
		tokens, all := map[string]string{}, []string{}
		for step := range 300 {
			switch r.IntN(6) {
			case 0, 1:
				account := accounts[r.IntN(len(accounts))]
				name, uid, node := fmt.Sprintf("%s-%d", account.Name, r.IntN(3)), fmt.Sprintf("uid-%d", step), fmt.Sprintf("node-%d", r.IntN(3))
				for old, p := range m.pods { // one of its name gives way
					if p.account.Namespace == account.Namespace && p.name == name {
						delete(m.pods, old)
						w.end(p.account, p.name, old)
					}
				}
				m.pods[uid] = modelPod{account, name, node}
				tokens[uid] = w.run(account, name, uid, node, forCA, func(x *token) {
					if r.IntN(2) == 0 {
						x.node = ""
					}
				})
				all = append(all, uid)
			case 2:
				if live := slices.Sorted(maps.Keys(m.pods)); len(live) > 6 {
					uid := live[r.IntN(len(live))]
					w.end(m.pods[uid].account, m.pods[uid].name, uid)
					delete(m.pods, uid)
				}
			case 3:
				w.server.set(func() {
					w.server.away = nil
					if r.IntN(2) == 0 {
						w.server.away = errors.New("connection refused")
					}
				})
			default:
				if len(all) == 0 {
					continue
				}
				uid, asks := all[r.IntN(len(all))], accounts[r.IntN(len(accounts))]
				if live := slices.Sorted(maps.Keys(m.pods)); len(live) > 0 && r.IntN(2) == 0 {
					uid = live[r.IntN(len(live))]
				}
				c, err := a.Authenticate(t.Context(), home, tokens[uid])
				got := err == nil && c.May(identityOf(td, asks)) == nil
				if want := m.may(uid, asks); got != want {
					t.Fatalf("seed %d, step %d: the holder of pod %s %+v gets %s: %t (%v); want %t", seed, step, uid, m.pods[uid], asks, got, err, want)
				}
				if got {
					issued++
				}
			}
		}
	}
	if issued < 200 {
		t.Errorf("%d certificates in all; want enough to tell", issued)
	}
}
