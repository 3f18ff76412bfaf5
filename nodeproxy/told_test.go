package nodeproxy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// proven is what the health streams have proven, as a test wants it.
type proven struct {
	exports  map[healthstream.Change]*record.Export
	gateways map[string][]healthstream.Gateway
}

func (p *proven) Known(network, service string) (healthstream.Known, bool) {
	e := p.exports[healthstream.Change{Service: service, Network: network}]
	return healthstream.Known{Offer: e}, e != nil
}
func (p *proven) Gateways(network string) []healthstream.Gateway { return p.gateways[network] }

func (p *proven) offer(service string, e *record.Export) {
	p.exports[healthstream.Change{Service: service, Network: "west"}] = e
}

func accountIn(namespace, account string) spiffeid.ID {
	return spiffeid.RequireFromString("spiffe://cluster.local/ns/" + namespace + "/sa/" + account)
}

func gatewayAt(name string, last byte, live, draining bool) healthstream.Gateway {
	return healthstream.Gateway{Name: name, Instance: record.Instance{last}, Live: live,
		Body: &record.Network{Gateway: name, Draining: draining, Addresses: []record.Address{{Host: "gw.example.com", Port: 15008}, {Host: fmt.Sprintf("10.2.0.%d", last), Port: 15008}}}}
}

// toldWorld is an adapter between what is proven and a real builder, with a file of links.
type toldWorld struct {
	*toldShares
	proven  *proven
	file    *links.File
	path    string
	builder *discovery.Builder
	snap    *mesh.Snapshot
}

const testKey = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="

func newToldWorld(t *testing.T, link string) *toldWorld {
	t.Helper()
	w := &toldWorld{proven: &proven{map[healthstream.Change]*record.Export{}, map[string][]healthstream.Gateway{"west": {gatewayAt("gw-1", 1, true, false)}}}, path: filepath.Join(t.TempDir(), "networks.yaml"), builder: discovery.NewBuilder(0)}
	w.link(t, link)
	var err error
	if w.file, err = links.Open(w.path, "east"); err != nil {
		t.Fatal(err)
	}
	w.builder.SetTrustDomain("cluster.local")
	w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "east"}, Record: discovery.Network{Name: "east"}})
	w.toldShares = newToldShares("east", func() *mesh.Snapshot { return w.snap }, w.file, w.proven, w.take, zerolog.Nop())
	return w
}

func (w *toldWorld) link(t *testing.T, link string) {
	t.Helper()
	if err := os.WriteFile(w.path, []byte("networks:\n  - {name: west, keys: ['"+testKey+"']"+link+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (w *toldWorld) take(c ...discovery.Change) {
	w.builder.Apply(c...)
	w.snap, _, _ = w.builder.Commit()
}

// share is what holds of a service on west.
func (w *toldWorld) share(service string) (mesh.Share, bool) {
	svc := w.snap.Service(service)
	if svc == nil {
		return mesh.Share{}, false
	}
	return w.snap.Share(svc, "west")
}

const shopName = "shop.default.svc.cluster.local"

func shopExport(change func(*record.Export)) *record.Export {
	e := &record.Export{Name: "shop", Namespace: "default", Ports: []record.Port{{Name: "http", Port: 80}}, Scope: record.ScopeGlobal, Identities: []spiffeid.ID{accountIn("default", "shop")}, Capacity: 900, Created: 5}
	if change != nil {
		change(e)
	}
	return e
}

func TestProvenExportsBecomeSharesAndGateways(t *testing.T) {
	w := newToldWorld(t, ", gatewayServiceAccount: mesh/gate")
	w.proven.gateways["west"] = []healthstream.Gateway{gatewayAt("gw-1", 1, false, false), gatewayAt("gw-1", 2, true, true), gatewayAt("gw-1", 3, true, false), gatewayAt("gw-2", 4, true, true)}
	w.proven.offer(shopName, shopExport(nil))
	w.update(shopName)
	s, ok := w.share(shopName)
	if !ok || !slices.Equal(s.Identities, []spiffeid.ID{accountIn("default", "shop")}) || !s.Offers(80) || s.Capacity != mesh.RoundCapacity(900) {
		t.Fatalf("share %+v, %v", s.Export, ok)
	}
	var got []string
	for _, g := range w.snap.Gateways("west") {
		got = append(got, fmt.Sprint(g.Name, " ", g.Address, " ", g.Identity, " ", g.Drained))
	}
	if want := []string{
		"gw-1 10.2.0.3:15008 spiffe://cluster.local/ns/mesh/sa/gate false",
		"gw-2 10.2.0.4:15008 spiffe://cluster.local/ns/mesh/sa/gate true",
	}; !slices.Equal(got, want) {
		t.Errorf("gateways %q; want %q", got, want)
	}
	w.proven.gateways["west"] = w.proven.gateways["west"][3:]
	w.updateAll([]healthstream.Change{{Service: shopName, Network: "west"}})
	if gs := w.snap.Gateways("west"); len(gs) != 1 || !gs[0].Drained {
		t.Errorf("%v when one is left that drains; want it, and that it drains: who chooses knows that there is no other", gs)
	}
	w.proven.gateways["west"] = []healthstream.Gateway{gatewayAt("gw-1", 3, true, false)}
	w.updateAll([]healthstream.Change{{Service: shopName, Network: "west"}})
	if n := len(w.snap.Gateways("west")); n != 1 {
		t.Errorf("%d gateways when one is gone; want 1", n)
	}
	w.proven.offer(shopName, nil)
	w.proven.gateways = nil
	w.update(shopName)
	if _, ok := w.share(shopName); ok || w.snap.HasNetwork("west") || w.snap.Service(shopName) != nil || len(w.told) != 0 {
		t.Errorf("after the withdrawal: share %v, network %v, service %v, %d told", ok, w.snap.HasNetwork("west"), w.snap.Service(shopName), len(w.told))
	}
}

// Of two processes of a gateway that both are said to be live, the one with the latest
// certificate says where it is, whichever is told first.
func TestTheLatestProcessOfAGatewaySaysWhereItIs(t *testing.T) {
	before, now := gatewayAt("gw-1", 1, true, false), gatewayAt("gw-1", 2, true, false)
	before.Issued = time.Unix(1_000, 0)
	now.Issued = before.Issued.Add(time.Hour)
	for _, told := range [][]healthstream.Gateway{{before, now}, {now, before}} {
		w := newToldWorld(t, "")
		w.proven.gateways["west"] = told
		w.proven.offer(shopName, shopExport(nil))
		w.update(shopName)
		if g := w.snap.Gateways("west"); len(g) != 1 || g[0].Address.String() != "10.2.0.2:15008" {
			t.Errorf("gateways %v; want gw-1 at 10.2.0.2:15008", g)
		}
	}
}

// A proven export claims no more than the link lets it.
func TestExportsAreHeldToTheirLink(t *testing.T) {
	for name, c := range map[string]struct {
		link    string
		service string
		export  *record.Export
		want    []spiffeid.ID // who may answer; none: there is no share
		weight  uint32
		problem string
	}{
		"its own namespace": {"", shopName, shopExport(func(e *record.Export) { e.Identities = append(e.Identities, accountIn("payments", "pay")) }),
			[]spiffeid.ID{accountIn("default", "shop")}, 896, "may not answer"},
		"nobody that may answer": {"", shopName, shopExport(func(e *record.Export) { e.Identities = []spiffeid.ID{accountIn("payments", "pay")} }), nil, 0, "lets none of"},
		"namespaces that the link names": {", namespaces: [payments]", shopName, shopExport(func(e *record.Export) { e.Identities = []spiffeid.ID{accountIn("payments", "pay")} }),
			[]spiffeid.ID{accountIn("payments", "pay")}, 896, ""},
		"another trust domain": {"", shopName, shopExport(func(e *record.Export) {
			e.Identities = []spiffeid.ID{spiffeid.RequireFromString("spiffe://elsewhere.example/ns/default/sa/shop")}
		}), nil, 0, "lets none of"},
		"a trust domain that the link names": {", trustDomains: [elsewhere.example]", shopName, shopExport(func(e *record.Export) {
			e.Identities = []spiffeid.ID{spiffeid.RequireFromString("spiffe://elsewhere.example/ns/default/sa/shop")}
		}), []spiffeid.ID{spiffeid.RequireFromString("spiffe://elsewhere.example/ns/default/sa/shop")}, 896, ""},
		"a greatest weight":                            {", maxCapacity: 10", shopName, shopExport(nil), []spiffeid.ID{accountIn("default", "shop")}, 10, ""},
		"a service of another namespace under its own": {"", "pay.payments.svc.cluster.local", shopExport(func(e *record.Export) { e.Name = "pay" }), nil, 0, "namespace"},
		"a name without a namespace":                   {"", "pay.example.com", shopExport(nil), nil, 0, "says no namespace"},
	} {
		w := newToldWorld(t, c.link)
		w.proven.offer(c.service, c.export)
		w.update(c.service)
		s, ok := w.share(c.service)
		if ok != (c.want != nil) || ok && (!slices.Equal(s.Identities, c.want) || s.Capacity != c.weight) {
			t.Errorf("%s: %+v, %v; want %v with weight %d", name, s.Export, ok, c.want, c.weight)
		}
		if got := strings.Join(w.problems(), " "); (c.problem == "") != (got == "") || !strings.Contains(got, c.problem) {
			t.Errorf("%s: problems %q; want %q", name, got, c.problem)
		}
	}
}

// An export takes no names of other services, of its namespace or another one, nor any
// outside the mesh.
func TestExportsTakeNoNamesOfOthers(t *testing.T) {
	w := newToldWorld(t, "")
	w.proven.offer(shopName, shopExport(func(e *record.Export) {
		e.Name = "store"
		e.Aliases = []string{"shop.default.mesh.internal", "store.default.mesh.internal", "pay.payments.mesh.internal", "pay.payments.svc.cluster.local", "api.example.com"}
	}))
	w.update(shopName)
	for name, want := range map[string]bool{shopName: true, "shop.default.mesh.internal": true, "store.default.mesh.internal": false, "pay.payments.mesh.internal": false, "pay.payments.svc.cluster.local": false, "api.example.com": false} {
		if got := w.snap.Service(name) != nil; got != want {
			t.Errorf("%s leads to the export: %v, want %v", name, got, want)
		}
	}
	if p := w.builder.Problems(); len(p) != 4 {
		t.Errorf("problems %v, want one for each of the 4 names", p)
	}
}

// What the file of links says takes effect when it is read again; one that cannot be read
// changes nothing.
func TestLinksAreReadAgain(t *testing.T) {
	w := newToldWorld(t, "")
	w.proven.offer(shopName, shopExport(nil))
	w.update(shopName)
	w.link(t, ", maxCapacity: 3")
	if changed, err := w.file.Reread(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	w.relinked()
	if s, _ := w.share(shopName); s.Export == nil || s.Capacity != 3 {
		t.Errorf("with a bound: %+v", s.Export)
	}
	w.link(t, ", namespaces: ['a b']")
	if changed, err := w.file.Reread(); changed || err == nil || !strings.Contains(err.Error(), "networks[0].namespaces") || w.file.Failure() == nil || !w.file.Has("west") {
		t.Errorf("odd: %v, %v", changed, err)
	}
	w.link(t, "")
	if err := os.WriteFile(w.path, []byte("networks: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := w.file.Reread(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	w.relinked()
	if _, ok := w.share(shopName); ok {
		t.Error("unlinked, its share holds")
	}
}

// What is wrong with one key of a link has its own remedy, not that of a file that is not there.
func TestMistakesInLinksHaveTheirOwnRemedy(t *testing.T) {
	w := newToldWorld(t, "")
	const remedy = "isthmus network show"
	w.link(t, ", maxCapacity: -1")
	if _, err := links.Open(w.path, "east"); err == nil || strings.Contains(err.Error(), remedy) || !strings.Contains(err.Error(), "federation.networks: ") || !strings.Contains(err.Error(), "maxCapacity") {
		t.Errorf("a bad bound: %v", err)
	}
	if _, err := links.Open(w.path+".none", "east"); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("no file: %v", err)
	}
}

// A network that gateways tell of and the file has under another name is told.
func TestANetworkThatIsNotLinkedIsTold(t *testing.T) {
	w := newToldWorld(t, "")
	none := func(string) bool { return false }
	got := w.file.Unlinked([]string{"east", "wset"}, none)
	if want := `did you mean "west" in ` + w.path; len(got) != 1 || !strings.Contains(got["wset"], "network wset") || !strings.Contains(got["wset"], want) {
		t.Errorf("got %q; want of wset %q", got, want)
	}
	if got := w.file.Unlinked([]string{"west", "wset"}, none); len(got) != 1 || strings.Contains(got["wset"], "did you mean") || !strings.Contains(got["wset"], w.path) {
		t.Errorf("beside west: %q", got)
	}
	if got := w.file.Unlinked([]string{"east", "west"}, none); len(got) != 0 {
		t.Errorf("all are linked: %q", got)
	}
	if got := w.file.Unlinked([]string{"wset"}, func(n string) bool { return n == "wset" }); len(got) != 0 {
		t.Errorf("discovery lists it: %q", got)
	}
}

// Where discovery itself says it, that holds.
func TestTheFilesWordOfAnotherNetworkGoesFirst(t *testing.T) {
	w := newToldWorld(t, "")
	listed := discovery.Gateway{Name: "gw-1", Network: "west", Address: netip.MustParseAddrPort("10.9.9.9:15008"), ServiceAccount: "listed/gate"}
	capacity := uint32(2)
	w.take(
		discovery.Change{Key: discovery.Key{Kind: discovery.KindNetwork, Name: "west"}, Record: discovery.Network{Name: "west"}},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindGateway, Name: "west/gw-1"}, Record: listed},
		discovery.Change{Key: discovery.Key{Kind: discovery.KindShare, Name: "west/shop"}, Record: discovery.Share{Network: "west", Name: "shop", Ports: []discovery.SharePort{{Port: 80}}, Identities: []string{accountIn("default", "listed").String()}, Capacity: &capacity}},
	)
	w.proven.offer(shopName, shopExport(nil))
	w.update(shopName)
	if s, ok := w.share(shopName); !ok || s.Identities[0] != accountIn("default", "listed") || s.Capacity != 2 {
		t.Errorf("share %+v; want what the file says", s.Export)
	}
	if g := w.snap.Gateways("west"); len(g) != 1 || g[0].Address != listed.Address {
		t.Errorf("gateways %+v; want what the file says", g)
	}
}

// However many names applications ask for, a bounded number is asked of the gateways.
func TestNamesThatAreAskedForAreBounded(t *testing.T) {
	var a askedNames
	pod := accountIn("default", "crawler")
	now := time.Now()
	for i := range 10 * maxAsked {
		if asked, expired := a.begin(fmt.Sprint("name-", i, ".default.svc.cluster.local"), pod, now); asked != (i < maxAsked) || len(expired) > 0 {
			t.Fatalf("name %d: asked %v, expired %d", i, asked, len(expired))
		}
	}
	if asked, _ := a.begin("name-0.default.svc.cluster.local", pod, now.Add(askedFor-1)); !asked {
		t.Error("one that is asked for is not")
	}
	if asked, expired := a.begin("another.default.svc.cluster.local", pod, now.Add(askedFor)); !asked || len(expired) != maxAsked || len(a.names) != 1 {
		t.Errorf("after a while: asked %v, %d expired, %d left", asked, len(expired), len(a.names))
	}
	for host, want := range map[string]string{
		"Shop.Default.svc.cluster.local.": shopName, "shop.default.mesh.internal": shopName, "db.example.com": "db.example.com",
		"shop": "", "": "", "a b.c": "", strings.Repeat("a", 254) + ".b": "", "x\x00.y": "",
	} {
		if got, ok := links.Canonical(host); got != want || ok != (want != "") {
			t.Errorf("links.Canonical(%q) = %q, %v; want %q", host, got, ok, want)
		}
	}
}

// An export without identities has no endpoints: its service keeps its names, and connections to it are refused for
// want of an endpoint. With identities again, connections go there. A link that would not admit the identities of the
// namespace does not admit the export either, so that neither depends on pods.
func TestExportWithoutIdentitiesHasNoEndpoint(t *testing.T) {
	for link, admitted := range map[string]bool{"": true, ", namespaces: [default]": true, ", namespaces: [payments]": false} {
		w := newToldWorld(t, link)
		w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "client"}, Record: discovery.Workload{UID: "client", Network: "east", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}}})
		resolve := func() error {
			_, err := route.Resolve(w.snap, route.Flow{Source: w.snap.Workload("client"), Host: "shop.default.mesh.internal", Port: 80})
			return err
		}
		for turn := range 4 { // pods, no pods, and again
			pods := turn%2 == 0
			w.proven.offer(shopName, shopExport(func(e *record.Export) {
				if !pods {
					e.Identities, e.Capacity = nil, 0
				}
			}))
			w.update(shopName)
			s, ok := w.share(shopName)
			if problem := strings.Join(w.problems(), " "); ok != admitted || strings.Contains(problem, "is not used") == admitted {
				t.Fatalf("link %q, pods %v: share %+v, %v, problems %q; want it admitted: %v", link, pods, s.Export, ok, problem, admitted)
			}
			if !admitted {
				continue
			}
			var refused *route.Error
			if err := resolve(); pods != (err == nil) || err != nil && (!errors.As(err, &refused) || refused.Kind != route.NoEndpoint) {
				t.Errorf("link %q, pods %v: a connection gets %v", link, pods, err)
			}
			if svc := w.snap.Service("shop.default.mesh.internal"); svc == nil || svc.Hostname != shopName || len(s.Ports) != 1 {
				t.Errorf("link %q, pods %v: service %v with ports %v", link, pods, svc, s.Ports)
			}
		}
	}
}

// An export whose identities the link refuses makes no share at zero replicas either, until
// the link admits them.
func TestRefusedExportMakesNoShareAtZero(t *testing.T) {
	w := newToldWorld(t, "")
	for step, pods := range []bool{true, false, false} {
		w.proven.offer(shopName, shopExport(func(e *record.Export) {
			e.Identities = []spiffeid.ID{spiffeid.RequireFromString("spiffe://elsewhere.example/ns/default/sa/shop")}
			if !pods {
				e.Identities, e.Capacity = nil, 0
			}
		}))
		admitted := step == 2
		if w.update(shopName); admitted {
			w.link(t, ", trustDomains: [elsewhere.example]")
			if _, err := w.file.Reread(); err != nil {
				t.Fatal(err)
			}
			w.relinked()
		}
		s, ok := w.share(shopName)
		if problem := strings.Join(w.problems(), " "); ok != admitted || strings.Contains(problem, shopName) == admitted {
			t.Errorf("step %d, pods %v: share %+v, %v, problems %q; want it admitted: %v", step, pods, s.Export, ok, problem, admitted)
		}
	}
}
