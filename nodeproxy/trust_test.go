package nodeproxy_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// foreignCA is the directory of another CA of the same trust domain.
func foreignCA(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	if _, err := identity.InitCA(dir, spiffeid.RequireTrustDomainFromString("cluster.local")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAPodOfAnotherCAIsNotHealthyAtItsGateway(t *testing.T) {
	t.Parallel()
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Write()
	dir := foreignCA(t)
	p.StartNode("west", "west-1", func(c *nodeproxy.Config) { c.Identity.Dir = dir })
	p.Start()
	gw := p.Process("gateway west/gw-1")
	meshtest.Eventually(t, "the gateway leaves the pod out", func() bool {
		meshtest.Hello(p.listen.hello)
		row := gw.Row(t, "pods", "workload", p.pods[0].UID)
		return row != nil && !row.Has("hop", "healthy")
	})
	gw.Log.Await(t, "outlier changed", "edge", "ejected", "reason", "identity", "workload", p.pods[0].UID)
	line := gw.Log.Await(t, "handshake refused", "hop", "pod", "workload", p.pods[0].UID)
	if !strings.Contains(line.Text("address"), p.pods[0].Addr.String()) || line.Text("claims") != p.pods[0].Identity().String() {
		t.Errorf("the gateway says %v; want address and claimed name", line)
	}
	failed := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "identity")
	if text := failed.Text("error"); !strings.Contains(text, "inner handshake") || strings.Contains(text, "outer handshake") {
		t.Errorf("the client says %q; want it to name the inner handshake only", text)
	}
	if row := p.client().Row(t, "gateways", "name", "gw-1"); !row.Has("phase", "healthy", "health", 1) {
		t.Errorf("the client believes %v of the gateway; want full health", row)
	}
}

func TestAGatewayOfAnotherCAFailsTheOuterHandshake(t *testing.T) {
	t.Parallel()
	p := newPair(t, 1)
	p.Gateway("east", "gw-1")
	p.pods[0].App(8080)
	p.Write()
	dir := foreignCA(t)
	gw := p.StartGateway("west", "gw-1", func(c *gateway.Config) { c.Identity.Dir = dir; c.Federation.Health = false })
	p.Start()
	meshtest.Hello(p.listen.hello)
	failed := p.client().Log.Await(t, "connection", "direction", "outbound", "result", "identity")
	if text := failed.Text("error"); !strings.Contains(text, "outer handshake") || strings.Contains(text, "inner handshake") {
		t.Errorf("the client says %q; want it to name the outer handshake only", text)
	}
	line := gw.Log.Await(t, "handshake refused", "hop", "outer")
	if !strings.Contains(line.Text("error"), "certificate") {
		t.Errorf("the gateway says %v", line)
	}
	at := p.GatewayAt("west", "gw-1").String()
	p.node(1).Log.Await(t, "handshake refused", "hop", "health", "address", at)
	p.Process("gateway east/gw-1").Log.Await(t, "handshake refused", "hop", "federation", "address", at)
}

func TestAMissingCertificateOfOurOwnIsNobodysFault(t *testing.T) {
	p := newPair(t, 1)
	p.pods[0].App(8080)
	p.Write()
	dir := t.TempDir()
	issue := func(id spiffeid.ID) {
		t.Helper()
		svid, err := p.CA.Issue(id, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := identity.WriteSVID(dir, svid); err != nil {
			t.Fatal(err)
		}
	}
	issue(p.NodeID("east", "east-1")) // its own, and none for shop
	client := p.StartNode("east", "east-1", func(c *nodeproxy.Config) { c.Identity = identity.Config{Source: "files", Dir: dir} })
	p.StartGateway("west", "gw-1")
	p.StartNode("west", "west-1").AwaitReady(t)
	for range 5 {
		if _, err := meshtest.Hello(p.listen.hello); err == nil {
			t.Fatal("a connection without a certificate succeeded")
		}
	}
	client.Log.Await(t, "connection", "direction", "outbound", "result", "own_identity", "attempts", 1)
	if l := client.Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("our own missing certificate moved somebody's health: %v", l[0])
	}
	if row := client.Row(t, "gateways", "name", "gw-1"); !row.Has("phase", "healthy", "health", 1) {
		t.Errorf("the client believes %v of the gateway; want full health", row)
	}
	meshtest.Eventually(t, "not ready, for want of shop's certificate alone", func() bool {
		status, body := client.Get(t, "/healthz/ready")
		return status == http.StatusServiceUnavailable && strings.Contains(body, p.shop.Identity().String()) && !strings.Contains(body, "sa/nodeproxy") && !strings.Contains(body, "federation")
	})
	issue(p.shop.Identity())
	client.AwaitReady(t)
	meshtest.Eventually(t, "connections work", func() bool { _, err := meshtest.Hello(p.listen.hello); return err == nil })
}
