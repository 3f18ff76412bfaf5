package interop

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/integration/stock"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
	"github.com/isthmus-mesh/isthmus/policy"
)

// policiesOfTest are sets of policies for a workload of the namespace demo with the label app: pay.
// Of each: kind, namespace, and spec.
var policiesOfTest = [][]string{
	{},
	{`AuthorizationPolicy demo {}`},
	{`AuthorizationPolicy demo {rules: [{}]}`},
	{`AuthorizationPolicy demo {action: DENY}`},
	{`AuthorizationPolicy demo {action: DENY, rules: [{}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {principals: ["cluster.local/ns/demo/sa/shop"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {principals: ["*/sa/shop", "cluster.local/ns/other/*"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {principals: ["*"], notPrincipals: ["*batch"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {namespaces: ["oth*"]}}, {source: {serviceAccounts: ["shop"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {notServiceAccounts: ["other/shop", "batch"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {ipBlocks: ["10.71.1.2"], notNamespaces: [other]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{from: [{source: {notIpBlocks: ["10.71.1.2/32"]}}], to: [{operation: {ports: ["8080"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{to: [{operation: {ports: ["8080", "8081"], notPorts: ["8081"]}}, {operation: {notPorts: ["8080", "8081"]}}]}]}`},
	{`AuthorizationPolicy demo {rules: [{when: [{key: destination.ip, values: ["10.71.2.0/24"]}, {key: source.namespace, notValues: [demo]}, {key: destination.port, notValues: ["8081"]}]}]}`},
	{`AuthorizationPolicy demo {rules: [{when: [{key: source.principal, values: ["*batch"]}]}, {when: [{key: source.ip, notValues: ["10.71.1.0/30"]}]}]}`},
	{`AuthorizationPolicy demo {action: DENY, rules: [{from: [{source: {serviceAccounts: [batch]}}]}]}`, `AuthorizationPolicy demo {rules: [{from: [{source: {namespaces: [demo]}}]}]}`},
	{`AuthorizationPolicy root {action: DENY, rules: [{to: [{operation: {ports: ["8081"]}}]}]}`, `AuthorizationPolicy other {}`},
	{`AuthorizationPolicy root {selector: {matchLabels: {app: pay}}, rules: [{from: [{source: {namespaces: [other]}}]}]}`, `AuthorizationPolicy demo {selector: {matchLabels: {app: cart}}, action: DENY, rules: [{}]}`},
	{`AuthorizationPolicy demo {selector: {matchLabels: {app: pay}}, rules: [{to: [{operation: {ports: ["8082"]}}]}]}`, `AuthorizationPolicy demo {rules: [{from: [{source: {serviceAccounts: [shop]}}]}]}`},
	{`PeerAuthentication demo {mtls: {mode: STRICT}}`},
	{`PeerAuthentication demo {selector: {matchLabels: {app: pay}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: PERMISSIVE}, 8081: {mode: DISABLE}}}`, `AuthorizationPolicy demo {rules: [{to: [{operation: {notPorts: ["8081"]}}]}]}`},
	{`PeerAuthentication demo {selector: {matchLabels: {app: pay}}, mtls: {mode: PERMISSIVE}, portLevelMtls: {8082: {mode: STRICT}}}`},
}

// What a stock ztunnel decides by the policies that isthmus export translates is what ours does, by
// identity, address and port.
func TestAStockServerDecidesAsOurs(t *testing.T) {
	need(t)
	const host = "server-stock-2"
	pod := netip.MustParseAddr(addresses[host])
	ca := &netspace.Process{Host: host, Args: []string{filepath.Join(here.bin, "isthmus"), "ca", "serve", "--dir", "ca", "--listen", stock.CA}, Log: filepath.Join(here.Dir, host+"-ca.log")}
	check(t, here.Start(ca, here.Accepts(host, stock.CA)))
	defer ca.Stop(syscall.SIGKILL, patience)
	ids := openCA(t)
	allowed, denied := 0, 0
	for i, set := range policiesOfTest {
		mesh := "trustDomain: cluster.local\nrootNamespace: root\nnetworks: [{name: net-b}]\nworkloads:\n" +
			"  - {uid: pay, name: pay, namespace: demo, serviceAccount: pay, network: net-b, node: " + host + ", addresses: [" + pod.String() + "], labels: {app: pay}}\npolicies:\n"
		for n, p := range set {
			kind, rest, _ := strings.Cut(p, " ")
			ns, spec, _ := strings.Cut(rest, " ")
			mesh += fmt.Sprintf("  - {apiVersion: security.istio.io/v1, kind: %s, metadata: {name: p-%d, namespace: %s}, spec: %s}\n", kind, n, ns, spec)
		}
		check(t, here.write("mesh-policies.yaml", []byte(mesh)))
		snap, err := file.Load(filepath.Join(here.Dir, "mesh-policies.yaml"))
		check(t, err)
		rules := snap.Policies().For(policy.Workload{Namespace: "demo", Labels: map[string]string{"app": "pay"}})
		export := exec.Command(filepath.Join(here.bin, "isthmus"), "export", "ztunnel", "--config", "mesh-policies.yaml", "--node", host)
		export.Dir = here.Dir
		text, err := export.Output()
		check(t, err)
		check(t, here.write(host+".yaml", text))
		zt := &netspace.Process{Host: host, Args: []string{here.ztunnel}, Log: filepath.Join(here.Dir, host+".log"), Env: stock.Environment(host, "demo/pay/pay", "net-b", "info")}
		check(t, here.Start(zt, here.Ready(host, stock.Ready)))
		for _, account := range []string{"demo/shop", "demo/batch", "other/shop"} {
			for _, from := range []string{"client-ours", "client-stock"} {
				raw, err := here.Dial(from, pod.String()+":15008")
				check(t, err)
				cfg, err := ids.ClientTLS(t.Context(), id(account), []spiffeid.ID{id("demo/pay")}, "h2")
				check(t, err)
				transport, err := hbone.ClientTLS(t.Context(), raw, cfg)
				check(t, err)
				session, err := hbone.NewClient(t.Context(), transport, hbone.DefaultConfig())
				check(t, err)
				for _, port := range []uint16{8080, 8081, 8082} {
					c := policy.Connection{Source: id(account), From: netip.MustParseAddr(addresses[from]), Destination: netip.AddrPortFrom(pod, port)}
					_, _, err := session.Open(t.Context(), &hbone.Request{Authority: c.Destination.String()})
					var status *hbone.StatusError
					if !errors.As(err, &status) || status.Status != 401 && status.Status != 503 { // 503: nothing listens there
						t.Fatalf("set %d %q, %+v: %v", i, set, c, err)
					}
					decision := rules.Decide(c)
					if decision.Allowed() {
						allowed++
					} else {
						denied++
					}
					if (status.Status == 503) != decision.Allowed() {
						t.Errorf("set %d %q, %+v: the stock server answers %d, ours decides %s", i, set, c, status.Status, decision)
					}
				}
				session.Close(nil)
			}
		}
		zt.Stop(syscall.SIGKILL, patience)
	}
	t.Logf("%d allowed, %d denied", allowed, denied)
}
