package gateway_test

import (
	"context"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// report attaches to gw-1 as identity who, calls itself node, and says facts.
func (s *site) report(t *testing.T, who spiffeid.ID, node string, facts ...federation.EndpointFact) *healthstream.Client {
	t.Helper()
	at := s.GatewayAt("west", "gw-1")
	gw := &mesh.Gateway{Name: "gw-1", Network: "west", Address: at, Federation: at, Identity: s.ID("isthmus-system/gateway-west")}
	c := healthstream.NewClient(healthstream.ClientConfig{
		Node: node, Network: "west", Self: who, Identity: s.Manager(),
		Gateways: func() []*mesh.Gateway { return []*mesh.Gateway{gw} }, Facts: saying(facts), Log: zerolog.Nop(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return c
}

// saying is a node proxy that says the same all the time.
type saying []federation.EndpointFact

func (s saying) All() (out []healthstream.Fact) {
	for _, f := range s {
		out = append(out, healthstream.Fact{EndpointFact: f})
	}
	return out
}

func (s saying) Fact(t healthstream.Target) (healthstream.Fact, bool) {
	for _, f := range s.All() {
		if f.Target() == t {
			return f, true
		}
	}
	return healthstream.Fact{}, false
}

func sick(p *meshtest.Pod, port uint16) federation.EndpointFact {
	return federation.EndpointFact{Endpoint: p.Endpoint(), Port: port, State: federation.Ejected, Reason: "refused"}
}

func TestANodeSpeaksOnlyForPodsOfItsOwn(t *testing.T) {
	s := newSite(t, 2)
	stranger := s.Pod("west", "west-3", "other-1", "hello")
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	for _, p := range append(s.pods, stranger) {
		p.Serve(meshtest.HBONEPort, echo)
	}
	gw.AwaitReady(t)
	// One true word and two about others' pods, in one breath.
	c := s.report(t, s.NodeID("west", "west-1"), "west-1", sick(s.pods[1], 8080), sick(s.pods[0], 8080), sick(stranger, 8080))
	gw.Log.Await(t, "outlier changed", "edge", "ejected", "scope", "endpoint", "endpoint", s.pods[0].Endpoint(), "source", "report")
	if c.Attached() != 1 {
		t.Errorf("attached to %d gateways; want 1: lies about others are dropped, the stream goes on", c.Attached())
	}
	for _, p := range []*meshtest.Pod{s.pods[1], stranger} {
		if l := gw.Log.Find("outlier changed", "endpoint", p.Endpoint()); len(l) > 0 {
			t.Errorf("a node ejected a pod of another node: %v", l[0])
		}
		ports, _ := gw.Row(t, "pods", "workload", p.UID)["ports"].(map[string]any)
		if port, _ := ports["8080"].(map[string]any); port["witness"] != "unknown" || port["usable"] != true {
			t.Errorf("the gateway believes %v of %s", ports, p.UID)
		}
	}
	line := gw.Log.Await(t, "report of a pod that discovery does not place on its node rejected", "level", "warn", "node", "west-1", "peer", s.NodeID("west", "west-1"))
	if n := gw.Metric(t, `isthmus_federation_rejected_total{reason="other_node"}`); n < 2 {
		t.Errorf("rejected %v reports; want at least 2 (%v)", n, line)
	}
	if lines := gw.Log.Find("report of a pod that discovery does not place on its node rejected"); len(lines) != 1 {
		t.Errorf("%d lines about one sender; want 1 a minute", len(lines))
	}
	session := s.dial(t)
	for range 20 {
		if got := chosen(t, session, nil); got == uint64(s.pods[0].Endpoint()) {
			t.Fatal("the pod that its own node reports was chosen")
		}
	}
}

// What a node proxy has said of a port that no service leads to counts once one does.
func TestAReportOfAPortCountsWhenAServiceLeadsThere(t *testing.T) {
	s := newSite(t, 2)
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	s.report(t, s.NodeID("west", "west-1"), "west-1", sick(s.pods[0], 9090), sick(s.pods[0], 8081))
	gw.Log.Await(t, "outlier changed", "edge", "ejected", "scope", "endpoint", "endpoint", s.pods[0].Endpoint(), "port", 8081)
	if l := gw.Log.Find("outlier changed", "port", 9090); len(l) > 0 {
		t.Errorf("a port that no service leads to is out: %v", l[0])
	}
	s.EditService("hello", func(x *discovery.Service) {
		x.Ports = append(x.Ports, discovery.ServicePort{Name: "later", Port: 82, TargetPort: 9090})
	})
	s.Write()
	gw.Log.Await(t, "outlier changed", "edge", "ejected", "scope", "endpoint", "endpoint", s.pods[0].Endpoint(), "port", 9090)
	ports, _ := gw.Row(t, "pods", "workload", s.pods[0].UID)["ports"].(map[string]any)
	if later, _ := ports["9090"].(map[string]any); later["usable"] != false {
		t.Errorf("ports %v; want 9090 unusable", ports)
	}
}

func TestANodeProxyMustProveWhichNodeItIs(t *testing.T) {
	s := newSite(t, 1)
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	s.pods[0].Serve(meshtest.HBONEPort, echo)
	gw.AwaitReady(t)
	for _, c := range []struct {
		name string
		who  spiffeid.ID
		want string // of the line
	}{
		{"a workload", s.ID("default/hello"), "may not report health"},
		{"a gateway", s.ID("isthmus-system/gateway-west"), "may not report health"},
		{"no node in its identity", s.ID("isthmus-system/nodeproxy"), "does not say which node it is"},
		{"another node's name", s.NodeID("west", "west-2"), `may not speak as node "west-1"`},
		{"the node of this name on another network", s.NodeID("east", "west-1"), `is of a node of network "east"`},
	} {
		client := s.report(t, c.who, "west-1", sick(s.pods[0], 8080))
		line := gw.Log.Await(t, "health stream refused", "peer", c.who, "reason", "identity")
		if !strings.Contains(line.Text("error"), c.want) {
			t.Errorf("%s: the gateway says %q; want %q", c.name, line.Text("error"), c.want)
		}
		if n := client.Attached(); n != 0 {
			t.Errorf("%s is attached", c.name)
		}
	}
	if nodes := gw.State(t)["nodes"].([]any); len(nodes) != 0 {
		t.Errorf("attached nodes %v; want none", nodes)
	}
	if l := gw.Log.Find("outlier changed"); len(l) > 0 {
		t.Errorf("somebody else's word moved health: %v", l[0])
	}
}

func TestAllPodsReportedSickAreUsedAlikeRatherThanNone(t *testing.T) {
	s := newSite(t, 2)
	s.Write()
	gw := s.StartGateway("west", "gw-1")
	for _, p := range s.pods {
		p.Serve(meshtest.HBONEPort, echo)
	}
	gw.AwaitReady(t)
	s.report(t, s.NodeID("west", "west-1"), "west-1", sick(s.pods[0], 8080))
	s.report(t, s.NodeID("west", "west-2"), "west-2", sick(s.pods[1], 8080))
	for _, p := range s.pods {
		gw.Log.Await(t, "outlier changed", "edge", "ejected", "endpoint", p.Endpoint())
	}
	session, seen := s.dial(t), map[uint64]int{}
	for range 40 {
		seen[chosen(t, session, nil)]++
	}
	if seen[uint64(s.pods[0].Endpoint())] < 10 || seen[uint64(s.pods[1].Endpoint())] < 10 {
		t.Errorf("chosen %v; want both alike", seen)
	}
	if n := gw.Metric(t, "isthmus_dazed_picks_total"); n != 40 {
		t.Errorf("isthmus_dazed_picks_total %v; want 40", n)
	}
	stream, _, refused := connect(t, session, "hello.default.svc.cluster.local:81", hbone.Header{})
	if refused != nil {
		t.Fatalf("the other port: %v", refused)
	}
	stream.Close()
	if n := gw.Metric(t, "isthmus_dazed_picks_total"); n != 40 {
		t.Errorf("the other port is dazed too")
	}
}
