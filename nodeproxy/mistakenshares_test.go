package nodeproxy

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/route"
)

// Each mistake in a share has words of its own, where a connection fails, in explain and
// status, and one with a field is a problem that says what to write instead.
func TestEachMistakeInAShareHasWordsOfItsOwn(t *testing.T) {
	const (
		mesh = `networks: [{name: east}, {name: west}]
gateways: [{name: gw, network: west, address: "10.2.0.1:15008"}]
services: [{name: hello, namespace: demo, global: true, ports: [{port: 80}]}]
workloads: [{uid: shop, network: east, node: n, addresses: [10.0.0.1]}]
`
		right = "network: west, name: hello, namespace: demo, ports: [{port: 80}], identities: [\"spiffe://cluster.local/ns/demo/sa/hello\"]"
	)
	for name, c := range map[string]struct {
		share   string
		refused []string // words of the refusal; nil: there is a way
		problem []string // words of the problems
	}{
		"right":             {right, nil, nil},
		"wrong network":     {strings.Replace(right, "west", "wset", 1), []string{"no endpoint", `shares[0].network "wset": is not a network of this mesh`}, []string{`shares[0].network "wset"`}},
		"two mistakes":      {strings.NewReplacer("west", "wset", "80", "81").Replace(right), []string{"no endpoint"}, []string{`shares[0].network "wset"`, `shares[0].ports "81": is not a port of service hello.demo.svc.cluster.local, which has 80`}},
		"capacity 0":        {right + ", capacity: 0", []string{"no endpoint", "network west has nobody who is ready (capacity 0 of its share)"}, nil},
		"another port":      {strings.Replace(right, "80", "81", 1), []string{"no endpoint", "network west does not offer port 80 (of its ports only 81"}, []string{`shares[0].ports "81"`}},
		"another service":   {strings.Replace(right, "hello", "helo", 1), []string{"no endpoint", "no network has a share of it", "name (hello) and namespace (demo)"}, nil},
		"own network":       {strings.Replace(right, "west", "east", 1), []string{"no endpoint", "counts for nothing on that network itself"}, []string{`shares[0].network "east": is the network of this process`}},
		"foreign identity":  {strings.Replace(right, "cluster.local", "other.org", 1), nil, []string{`"spiffe://other.org/ns/demo/sa/hello": trust domain other.org is not that of the mesh (cluster.local)`, "trustDomains of west in federation.networks"}},
		"linked identity":   {strings.Replace(right, "cluster.local", "linked.org", 1), nil, nil},
		"identity is wrong": {strings.Replace(right, "spiffe:/", "spiff:/", 1), []string{"no endpoint", "shares[0].identities[0]"}, []string{"shares[0].identities[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mesh.yaml")
			if err := os.WriteFile(path, []byte(mesh+"shares: [{"+c.share+"}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			p := &Proxy{store: new(discovery.Store), links: links.Of("east", map[string]keyfile.Link{"west": {TrustDomains: []string{"cluster.local", "linked.org"}}})}
			p.cfg.Network, p.cfg.Outbound = "east", []Outbound{{Workload: "shop", Listen: netip.MustParseAddrPort("127.0.0.1:80"), To: "hello.demo.svc.cluster.local:80"}}
			var err error
			if p.watcher, err = file.OpenFor("east", path, p.store); err != nil {
				t.Fatal(err)
			}
			snap := p.store.Current()
			flow := flowTo("hello.demo.svc.cluster.local", 80)
			flow.Source = snap.Workload("shop")
			refused, rows := "", ""
			if _, err := route.Resolve(snap, flow); err != nil {
				refused = routeFailure(p.because(snap, flow, err)).Error()
			}
			for _, r := range p.leadNowhere(snap) {
				rows += r.Why
			}
			if (refused == "") != (c.refused == nil) {
				t.Errorf("refused %q; want %q", refused, c.refused)
			}
			problems := strings.Join(append(p.watcher.Status().Findings(), p.foreign(snap)...), "\n")
			if (problems == "") != (c.problem == nil) {
				t.Errorf("problems %q; want %q", problems, c.problem)
			}
			for _, want := range c.refused {
				if !strings.Contains(refused, want) || !strings.Contains(rows, want) {
					t.Errorf("a connection fails with %q, status says %q; want %q in both", refused, rows, want)
				}
			}
			for _, want := range c.problem {
				if !strings.Contains(problems, want) {
					t.Errorf("problems\n%s\nwant %q", problems, want)
				}
			}
		})
	}
}
