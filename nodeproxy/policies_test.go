package nodeproxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// policed is hello on west, with clients on east, through gateways, and on west.
type policed struct {
	*meshtest.Mesh
	at map[string]netip.AddrPort // where clients connect
}

func newPoliced(t testing.TB) *policed { return newPolicedIn(t, discovery.DefaultTrustDomain) }

func newPolicedIn(t testing.TB, trustDomain string) *policed {
	p := &policed{meshtest.NewIn(t, trustDomain), map[string]netip.AddrPort{}}
	p.Networks("east", "west")
	p.Service("hello", 80, 8080)
	p.Gateway("east", "gw-1")
	p.Gateway("west", "gw-1")
	for _, name := range []string{"shop", "batch"} {
		p.at[name] = p.Pod("east", "east-1", name+"-1").Outbound(hello)
	}
	p.at["near"] = p.Pod("west", "west-1", "near-1").Outbound(hello)
	for i := range 2 {
		pod := p.Pod("west", "west-2", fmt.Sprintf("hello-%d", i+1), "hello")
		pod.Edit(func(w *discovery.Workload) { w.Labels = map[string]string{"app": "hello"} })
		pod.App(8080)
	}
	return p
}

// policies writes the objects into the discovery file, in place of those before.
func (p *policed) policies(t testing.TB, objects ...string) {
	t.Helper()
	p.Config.Policies = nil
	for _, text := range objects {
		var o discovery.Policy
		if err := yaml.Unmarshal([]byte("apiVersion: security.istio.io/v1\n"+text), &o); err != nil {
			t.Fatal(err)
		}
		p.Config.Policies = append(p.Config.Policies, o)
	}
	p.Write()
}

func (p *policed) dial(t testing.TB, name string) net.Conn {
	t.Helper()
	c, err := meshtest.Dial(p.at[name])
	if err == nil {
		_, err = meshtest.Ask(c, "1")
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

const (
	noBatch = `
kind: AuthorizationPolicy
metadata: {name: no-batch, namespace: default}
spec:
  action: DENY
  rules: [{from: [{source: {principals: ["cluster.local/ns/default/sa/batch"]}}]}]`
	nearOnly = `
kind: AuthorizationPolicy
metadata: {name: near-only, namespace: default}
spec:
  selector: {matchLabels: {app: hello}}
  rules: [{from: [{source: {serviceAccounts: [near]}}], to: [{operation: {ports: ["8080"]}}]}]`
)

// Policies are in force beside the pod, for clients of its own network and of others, for new
// connections and for those that are open, and are nobody's fault.
func TestPoliciesDecideAtTheDestination(t *testing.T) {
	p := newPoliced(t)
	p.Start()
	server, client := p.Process("node proxy west-2"), p.Process("node proxy east-1")
	open := map[string]net.Conn{}
	for name := range p.at {
		open[name] = p.dial(t, name)
	}

	// Reset says that it has ended, and that nothing is complete.
	reset := func(name string) {
		t.Helper()
		if _, err := open[name].Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the open connection of %s ended with %v, want a reset", name, err)
		}
	}
	goesOn := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := meshtest.Ask(open[name], "2"); err != nil {
				t.Errorf("the open connection of %s: %v", name, err)
			}
			p.dial(t, name)
		}
	}
	denied := func(name, by string) {
		t.Helper()
		before := len(client.Log.Find("connection", "result", "denied"))
		if _, err := meshtest.Hello(p.at[name]); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("a new connection of %s: %v, want a reset", name, err)
		}
		line := server.Log.Await(t, "connection", "direction", "inbound", "result", "denied", "policy", by, "bytes_received", 0)
		if line.Text("connect_ms") != "0" || !strings.Contains(line.Text("error"), by) {
			t.Errorf("the line of a denied connection: %v", line)
		}
		meshtest.Eventually(t, "the client's line of a denied connection", func() bool { return len(client.Log.Find("connection", "result", "denied")) > before })
		told := client.Log.Find("connection", "result", "denied", "attempts", 1)
		if len(told) != len(client.Log.Find("connection", "result", "denied")) {
			t.Errorf("a denied connection was repeated: %v", client.Log.Find("connection", "result", "denied"))
		}
		for _, line := range told {
			if strings.Contains(line.Text("error"), by) || !strings.Contains(line.Text("error"), "401") {
				t.Errorf("what the client is told of a policy: %s", line.Text("error"))
			}
		}
	}

	p.policies(t, noBatch)
	reset("batch")
	goesOn("shop", "near")
	denied("batch", "AuthorizationPolicy default/no-batch")
	if cut := server.Log.Await(t, "connection", "result", "denied", "policy", "AuthorizationPolicy default/no-batch", "bytes_received", 8); cut.Text("connect_ms") == "0" {
		t.Errorf("the line of a connection that was cut: %v", cut)
	}

	p.policies(t, noBatch, nearOnly)
	reset("shop")
	goesOn("near")
	denied("shop", "AuthorizationPolicy default/near-only")

	p.policies(t)
	meshtest.Eventually(t, "everybody may connect again", func() bool {
		_, err := meshtest.Hello(p.at["batch"])
		return err == nil
	})
	for _, process := range []*meshtest.Process{server, client, p.Process("gateway west/gw-1"), p.Process("node proxy west-1")} {
		_, metrics := process.Get(t, "/metrics")
		for line := range strings.Lines(metrics) { // counters with labels are there once they count
			if strings.HasPrefix(line, "isthmus_connect_retries_total{") || strings.HasPrefix(line, "isthmus_outlier_edges_total{") {
				t.Errorf("%s: %s: a policy was somebody's fault", process.Name, line)
			}
		}
	}
	if n := server.Metric(t, `isthmus_connections_closed_total{reporter="destination",result="denied"}`); n < 4 {
		t.Errorf("%v denied connections are counted, want at least 4", n)
	}
}

// On the wire it is what a stock ztunnel answers, and a reason, but not which policy.
func TestADeniedConnectIsAnswered401(t *testing.T) {
	p := newPoliced(t)
	p.policies(t, noBatch)
	p.Start()
	pod := netip.AddrPortFrom(p.Config.Workloads[3].Addresses[0], meshtest.HBONEPort)
	s, err := p.Session(p.ID("default/batch"), pod, p.ID("default/hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(nil)
	_, _, err = s.Open(context.Background(), &hbone.Request{Authority: netip.AddrPortFrom(pod.Addr(), 8080).String()})
	var status *hbone.StatusError
	if !errors.As(err, &status) || status.Status != 401 || status.Reason() != header.ReasonDenied || strings.Contains(fmt.Sprint(status.Header), "no-batch") {
		t.Errorf("a CONNECT that policies deny is answered %v, %+v", err, status)
	}
}

// Explain says at the destination which policy decides about whom, and what it would be in dry run.
func TestExplainNamesThePolicyThatDecides(t *testing.T) {
	p := newPoliced(t)
	p.policies(t, noBatch, nearOnly, `
kind: AuthorizationPolicy
metadata: {name: tried, namespace: default, annotations: {istio.io/dry-run: "true"}}
spec: {action: DENY, rules: [{}]}`)
	p.Start()
	ask := func(process, source string) (status int, e answer.Explanation, body string) {
		status, body = p.Process("node proxy "+process).Get(t, "/explain?destination="+hello+"&source="+url.QueryEscape(source))
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return status, e, body
	}
	for source, want := range map[string]answer.Permission{
		"spiffe://cluster.local/ns/default/sa/batch": {Policy: "AuthorizationPolicy default/no-batch", Why: "denied by AuthorizationPolicy default/no-batch, rules[0]"},
		"cluster.local/ns/default/sa/batch":          {Policy: "AuthorizationPolicy default/no-batch", Why: "denied by AuthorizationPolicy default/no-batch, rules[0]"}, // as principals are written
		"spiffe://cluster.local/ns/default/sa/shop":  {Policy: "AuthorizationPolicy default/near-only", Why: "denied: no rule of an ALLOW policy matches: AuthorizationPolicy default/near-only"},
		"default/near-1": {Policy: "AuthorizationPolicy default/near-only", Why: "allowed by AuthorizationPolicy default/near-only, rules[0]", Allowed: true},
	} {
		_, e, body := ask("west-2", source)
		want.Port, want.DryRun = 8080, []string{"denied by AuthorizationPolicy default/tried, rules[0]"}
		for i := range e.Permissions {
			want.UID = fmt.Sprintf("west/default/hello-%d", i+1)
			if !reflect.DeepEqual(e.Permissions[i], want) {
				t.Errorf("%s: %+v, want %+v", source, e.Permissions[i], want)
			}
		}
		if len(e.Permissions) != 2 || !e.AtDestination || e.Serves() != want.Allowed {
			t.Errorf("%s: serves %v: %s", source, e.Serves(), body)
		}
	}
	if _, e, body := ask("east-1", "default/batch-1"); len(e.Permissions) != 0 || e.AtDestination || len(e.Candidates) == 0 {
		t.Errorf("the node proxy of the source: %s", body)
	}
	for asked, want := range map[[2]string]string{
		{"west-2", "default/nobody"}:                             "its SPIFFE ID: spiffe://cluster.local/ns/NAMESPACE/sa/",
		{"west-2", "default/batch-1"}:                            "its SPIFFE ID: spiffe://cluster.local/ns/NAMESPACE/sa/", // of another network
		{"west-1", "spiffe://cluster.local/ns/default/sa/batch"}: "none of its pods is one of " + hello + ": ask the node proxy of",
	} {
		if status, _, body := ask(asked[0], asked[1]); status != 400 || !strings.Contains(body, want) {
			t.Errorf("%q: %d %s, want %q", asked, status, body, want)
		}
	}
}

// Explain does not take clients of the own network to come from their pods' addresses: they come from those of
// their node proxies, which it does not know.
func TestExplainSaysOfRangesWhatHolds(t *testing.T) {
	p := newPoliced(t)
	p.policies(t, fmt.Sprintf(`
kind: AuthorizationPolicy
metadata: {name: no-near, namespace: default}
spec: {action: DENY, rules: [{from: [{source: {ipBlocks: ["%s"]}}]}]}`, p.at["near"].Addr()))
	p.Start()
	_, body := p.Process("node proxy west-2").Get(t, "/explain?destination="+hello+"&source=default/near-1")
	var e answer.Explanation
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	_, err := meshtest.Hello(p.at["near"])
	for _, x := range e.Permissions {
		if x.Allowed != (err == nil) || x.From != "" || !strings.Contains(x.Why, "is not known") {
			t.Errorf("a connection: %v; said is %+v", err, x)
		}
	}
	if len(e.Permissions) != 2 {
		t.Errorf("%s", body)
	}
}

// A selector that selects nobody is said by those who know all pods, until it selects one.
func TestAPolicyThatSelectsNobodyIsAWarning(t *testing.T) {
	p := newPoliced(t)
	typo := strings.NewReplacer("near-only", "typo", "app: hello", "app: helo").Replace(nearOnly)
	p.policies(t, noBatch, nearOnly, typo)
	p.EachNode = func(c *nodeproxy.Config) {
		if c.Node == "west-2" {
			c.Discovery.File, c.Discovery.GatewayServiceAccount = "", "isthmus-system/gateway-west"
			c.Discovery.Gateways = []string{p.GatewayAt("west", "gw-1").String()}
		}
	}
	p.Start()
	warnings := func(process string) []string {
		_, body := p.Process(process).Get(t, "/status")
		var s answer.Status
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return s.Warnings
	}
	for _, process := range []string{"gateway west/gw-1", "node proxy west-1"} {
		want := []string{"AuthorizationPolicy default/typo selects no workload, and changes nothing: no workload of namespace default has the label app=helo (there is hello): correct spec.selector.matchLabels, or delete it if such workloads will not come"}
		if got := warnings(process); !reflect.DeepEqual(got, want) {
			t.Errorf("%s warns %q, want %q", process, got, want)
		}
	}
	for _, process := range []string{"gateway west/gw-1", "node proxy west-1"} {
		meshtest.Eventually(t, process+" logs it", func() bool {
			return len(p.Process(process).Log.Find("a policy does not do what it was written for", "level", "warn")) == 1
		})
	}
	if got := warnings("node proxy west-2"); len(got) != 0 {
		t.Errorf("a node proxy that knows its own pods alone warns %q", got)
	}
	p.policies(t, noBatch, nearOnly)
	for _, process := range []string{"gateway west/gw-1", "node proxy west-1"} {
		meshtest.Eventually(t, process+" warns no more", func() bool { return len(warnings(process)) == 0 })
	}
}

// A policy that was written for Istio means the clients of the mesh by cluster.local, whatever their trust domain is: for node
// proxies with a file, for those that gateways tell, and for explain. Those of a linked network that are of cluster.local are
// others, which is said where both meet.
func TestClusterLocalInAPolicyIsTheMesh(t *testing.T) {
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprintf("told=%v", told), func(t *testing.T) {
			p := newPolicedIn(t, "west.local")
			p.policies(t, noBatch)
			list := p.linked(t, "west", "east", "cluster.local")
			p.EachGateway = func(c *gateway.Config) {
				if c.Network == "west" {
					c.Federation.Networks = list
				}
			}
			p.EachNode = func(c *nodeproxy.Config) {
				if c.Network == "west" {
					c.Federation.Networks = list
				}
				if c.Node == "west-2" && told {
					c.Discovery.File, c.Discovery.GatewayServiceAccount = "", "isthmus-system/gateway-west"
					c.Discovery.Gateways = []string{p.GatewayAt("west", "gw-1").String()}
				}
			}
			p.Start()
			p.dial(t, "shop")
			if _, err := meshtest.Hello(p.at["batch"]); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the client that the policy denies: %v, want a reset", err)
			}
			for source, denied := range map[string]bool{"cluster.local/ns/default/sa/batch": true, "west.local/ns/default/sa/batch": true, "spiffe://west.local/ns/default/sa/batch": true, "spiffe://cluster.local/ns/default/sa/batch": false} {
				_, body := p.Process("node proxy west-2").Get(t, "/explain?destination="+hello+"&source="+url.QueryEscape(source))
				var e answer.Explanation
				if err := json.Unmarshal([]byte(body), &e); err != nil || len(e.Permissions) != 2 || e.Permissions[0].Allowed == denied || e.Permissions[1].Allowed == denied {
					t.Errorf("%s: %v: %s", source, err, body)
				}
			}
			for process, warns := range map[string]bool{"gateway west/gw-1": true, "gateway east/gw-1": false, "node proxy west-1": true, "node proxy west-2": !told, "node proxy east-1": false} {
				_, body := p.Process(process).Get(t, "/status")
				var s answer.Status
				if err := json.Unmarshal([]byte(body), &s); err != nil || (len(s.Warnings) == 1 && strings.Contains(s.Warnings[0], "cluster.local/ns/default/sa/batch stands for west.local/ns/default/sa/batch")) != warns {
					t.Errorf("%s: %v, warnings %q, want one: %v", process, err, s.Warnings, warns)
				}
			}
		})
	}
}

// linked is a federation.networks of network in which clients of other may be of trustDomain, by a CA of its own.
func (p *policed) linked(t testing.TB, network, other, trustDomain string) string {
	t.Helper()
	ca, err := identity.InitCA(t.TempDir(), spiffeid.RequireTrustDomainFromString(trustDomain))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(p.Keys(network).List)
	if err != nil {
		t.Fatal(err)
	}
	f, err := keyfile.ParseFile(network, b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range f.Networks {
		if f.Networks[i].Name == other {
			f.Networks[i].TrustBundles = []keyfile.TrustBundle{{TrustDomain: trustDomain, Roots: string(identity.EncodeCertificates(ca.Certificate()))}}
		}
	}
	path := filepath.Join(t.TempDir(), "networks.yaml")
	if err := os.WriteFile(path, f.Format(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A stock node proxy asks for the address that its client has chosen. That one is dialed, and that one policies know.
func TestPoliciesKnowTheAddressThatIsAskedFor(t *testing.T) {
	p := newPoliced(t)
	pod := &p.Config.Workloads[3]
	first, second := pod.Addresses[0], p.Addr()
	pod.Addresses = append(pod.Addresses, second)
	p.Serve(netip.AddrPortFrom(second, 8080), func(c *net.TCPConn) { c.Write([]byte("second")) })
	only := func(action string) string {
		return fmt.Sprintf(`
kind: AuthorizationPolicy
metadata: {name: second, namespace: default}
spec: {action: %s, rules: [{when: [{key: destination.ip, values: ["%s"]}]}]}`, action, second)
	}
	p.policies(t, only("DENY"))
	p.Start()
	s, err := p.Session(p.ID("default/batch"), netip.AddrPortFrom(first, meshtest.HBONEPort), p.ID("default/hello"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(nil)
	connect := func(authority string) (string, error) {
		st, _, err := s.Open(context.Background(), &hbone.Request{Authority: authority})
		if err != nil {
			return "", err
		}
		defer st.Close()
		if err := st.CloseWrite(); err != nil { // the other application answers nothing then
			return "", err
		}
		said := make([]byte, len("second"))
		n, _ := st.Read(said)
		return string(said[:n]), nil
	}
	atFirst, atSecond := netip.AddrPortFrom(first, 8080).String(), netip.AddrPortFrom(second, 8080).String()
	explained := func() (list []answer.Permission, serves bool) {
		_, body := p.Process("node proxy west-2").Get(t, "/explain?destination="+hello+"&source=cluster.local/ns/default/sa/batch")
		var e answer.Explanation
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		for _, x := range e.Permissions {
			if x.UID == pod.UID {
				list = append(list, x)
			}
		}
		return list, e.Serves()
	}

	if _, err := connect(atSecond); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("a CONNECT to an address that a policy denies: %v", err)
	}
	if list, serves := explained(); len(list) != 2 || !list[0].Allowed || list[0].Address != first.String() || list[0].NotDialled || list[1].Allowed || list[1].Address != second.String() || !list[1].NotDialled || !serves {
		t.Errorf("explained as %+v, serves %v", list, serves)
	}

	p.policies(t, only("ALLOW"))
	meshtest.Eventually(t, "only the second address is allowed", func() bool {
		_, first := connect(atFirst)
		said, second := connect(atSecond)
		return first != nil && strings.Contains(first.Error(), "401") && second == nil && said == "second"
	})
	if list, serves := explained(); len(list) != 2 || list[0].Allowed || !list[1].Allowed || serves {
		t.Errorf("explained as %+v, serves %v", list, serves)
	}

	p.policies(t, noBatch)
	meshtest.Eventually(t, "addresses are the same to it", func() bool {
		list, serves := explained()
		return len(list) == 1 && list[0].Address == "" && !list[0].Allowed && !serves
	})
}

// Who is not in the mesh proves no identity, whatever discovery calls it: what policies say of that one is not said of it.
func TestExplainSpeaksOfNoIdentityOfWhoIsNotInTheMesh(t *testing.T) {
	p := newPoliced(t)
	outside := p.Pod("west", "west-1", "outside-1")
	outside.Edit(func(w *discovery.Workload) { w.Protocol = "TCP" })
	p.policies(t, "kind: AuthorizationPolicy\nmetadata: {name: outside, namespace: default}\nspec: {rules: [{from: [{source: {principals: [\"cluster.local/ns/default/sa/outside\"]}}]}]}")
	p.Start()
	explained := func(process string) (e answer.Explanation) {
		_, body := p.Process(process).Get(t, "/explain?destination="+hello+"&source=default/outside-1")
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return e
	}
	if e := explained("node proxy west-1"); !strings.Contains(e.NotCaptured, "not in the mesh") || len(e.Candidates) > 0 {
		t.Errorf("its own node proxy says %+v", e)
	}
	for _, x := range explained("node proxy west-2").Permissions {
		if x.Policy != "" || !strings.Contains(x.Why, "prove no identity") {
			t.Errorf("that of the destination says %+v", x)
		}
	}
}

// Where plain text goes past the node proxy, each pod whose policies deny any of it is named.
func TestPoliciesThatPlainTextPassesByAreSaid(t *testing.T) {
	const all = "kind: AuthorizationPolicy\nmetadata: {name: all, namespace: default}\nspec: {rules: [{}]}"
	const strict = "kind: PeerAuthentication\nmetadata: {name: mtls, namespace: default}\nspec: {mtls: {mode: STRICT}}"
	const remedy = " would deny connections in plain text, and these go past the node proxy to the pod, whoever opens them: set capture.scope to all, where policies hold for them (with a PeerAuthentication in mode STRICT none are let in at all), or keep them from the pod by a NetworkPolicy"
	p := newPoliced(t)
	p.Start()
	for _, c := range []struct {
		row      string
		policies []string
		says     string // of each pod
	}{
		{"none", nil, ""},
		{"an ALLOW policy", []string{nearOnly}, "AuthorizationPolicy default/near-only (ALLOW)" + remedy},
		{"one beside it that allows all", []string{nearOnly, all}, ""},
		{"a DENY policy of identities", []string{noBatch}, ""},
		{"STRICT", []string{nearOnly, strict}, "PeerAuthentication default/mtls is STRICT, and plain text goes past the node proxy"},
	} {
		p.policies(t, c.policies...)
		var want []string
		for _, pod := range []string{"west/default/hello-1", "west/default/hello-2"} {
			if c.says != "" {
				want = append(want, "pod "+pod+": "+c.says)
			}
		}
		last := ""
		meshtest.Eventually(t, c.row, func() bool {
			_, body := p.Process("node proxy west-2").Get(t, "/status")
			var s answer.Status
			if err := json.Unmarshal([]byte(body), &s); err != nil {
				t.Fatalf("%v: %s", err, body)
			}
			if got := fmt.Sprintf("%q", s.Unguarded); got != last {
				t.Logf("%s: %s, want %q", c.row, got, want)
				last = got
			}
			return reflect.DeepEqual(s.Unguarded, want)
		})
	}
}
