package ads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

// withNode runs f in virtual time with two gateways and a client of both.
func withNode(t *testing.T, f func(t *testing.T, gateways []*gateway, n *node), change ...func(*ClientConfig)) {
	synctest.Test(t, func(t *testing.T) {
		gateways := []*gateway{newGateway("g1"), newGateway("g2")}
		for _, g := range gateways {
			g.start()
			t.Cleanup(g.close)
		}
		n := startNode("n1", gateways, change...)
		t.Cleanup(n.close)
		f(t, gateways, n)
	})
}

// settle waits until retries have happened.
func settle() {
	time.Sleep(5 * time.Second)
	synctest.Wait()
}

// ordered returns the active gateway and the other one.
func ordered(t *testing.T, gateways []*gateway, n *node) (active, other *gateway) {
	t.Helper()
	switch n.client.Active() {
	case "g1":
		return gateways[0], gateways[1]
	case "g2":
		return gateways[1], gateways[0]
	}
	t.Fatalf("active source %q", n.client.Active())
	return nil, nil
}

func TestClientChangesItsActiveSource(t *testing.T) {
	withNode(t, func(t *testing.T, gateways []*gateway, n *node) {
		settle()
		for _, step := range []struct {
			name string
			do   func(active, other *gateway)
			stay bool
		}{
			{name: "stale", do: func(active, _ *gateway) { active.server.SetSource(true, true) }},
			{name: "both stale", do: func(active, _ *gateway) { active.server.SetSource(true, true) }, stay: true},
			{name: "the other one recovers", do: func(_, other *gateway) { other.server.SetSource(true, false) }},
			{name: "both recover", do: func(_, other *gateway) { other.server.SetSource(true, false) }, stay: true},
			{name: "not synchronized", do: func(active, _ *gateway) { active.server.SetSource(false, false) }},
			{name: "synchronized again", do: func(_, other *gateway) { other.server.SetSource(true, false) }, stay: true},
			{name: "stream lost", do: func(active, _ *gateway) { active.cut() }},
			{name: "stopped", do: func(active, _ *gateway) { active.close() }},
			{name: "started", do: func(_, other *gateway) { other.start() }, stay: true},
		} {
			active, other := ordered(t, gateways, n)
			step.do(active, other)
			if step.name == "stream lost" {
				synctest.Wait()
			} else {
				settle()
			}
			if now, _ := ordered(t, gateways, n); (now == active) != step.stay {
				t.Fatalf("%s: active source was %s and is %s", step.name, active.name, now.name)
			}
		}
		if n.synced < 5 {
			t.Errorf("synced %d times", n.synced)
		}
	})
}

func TestKnownResourcesStayWithoutServers(t *testing.T) {
	withNode(t, func(t *testing.T, gateways []*gateway, n *node) {
		for _, g := range gateways {
			apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "pod1", Groups: []string{"node/n1"}}, {Name: "pod2"}}})
		}
		settle()
		<-n.client.Subscribe(typeA, "pod2")
		for _, g := range gateways {
			g.close()
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := n.names(typeA); len(got) != 2 || n.client.Active() != "" || n.sources[len(n.sources)-1] != "" {
			t.Errorf("holds %q, active %q, told %q", got, n.client.Active(), n.sources)
		}
		pending := n.client.Subscribe(typeA, "pod3")
		apply(t, gateways[1], Update{Type: typeA, Removed: []string{"pod1"}})
		gateways[1].server.SetSource(false, false)
		gateways[1].start()
		settle()
		if got := n.names(typeA); len(got) != 2 {
			t.Errorf("holds %q with a server that is not synchronized", got)
		}
		gateways[1].server.SetSource(true, false)
		<-pending
		synctest.Wait()
		if got := n.names(typeA); len(got) != 1 || n.applied != 3 {
			t.Errorf("holds %q after %d updates", got, n.applied)
		}
	})
}

func TestSubscriptionIsAnsweredWhenComplete(t *testing.T) {
	withNode(t, func(t *testing.T, gateways []*gateway, n *node) {
		var all []Resource
		for i := range 40 {
			all = append(all, Resource{Name: fmt.Sprint("r", i), Groups: []string{"group"}, Body: make([]byte, 20_000)})
		}
		for _, g := range gateways {
			apply(t, g, Update{Type: typeA, Resources: all})
		}
		settle()
		if done := n.client.Subscribe("unknown", "x"); isClosed(done) {
			t.Error("a type that is not configured has an answer")
		}
		done := n.client.Subscribe(typeA, "group")
		<-done
		if got := len(n.names(typeA)); got != 40 {
			t.Errorf("%d resources when answered", got)
		}
		<-n.client.Subscribe(typeA, "nothing")
		if !isClosed(n.client.Subscribe(typeA, "group")) {
			t.Error("the second subscription has no answer")
		}
		n.client.Unsubscribe(typeA, "group")
		lost := n.client.Subscribe(typeA, "lost")
		n.client.Unsubscribe(typeA, "lost")
		<-lost
		synctest.Wait()
		if got := len(n.names(typeA)); got != 0 {
			t.Errorf("%d resources after the end of the subscription", got)
		}
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestRejectedResourceIsSentAgain(t *testing.T) {
	withNode(t, func(t *testing.T, gateways []*gateway, n *node) {
		n.mu.Lock()
		n.reject = map[string]error{"bad": errors.New("no address")}
		n.mu.Unlock()
		for _, g := range gateways {
			apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "bad", Groups: []string{"all"}}, {Name: "good", Groups: []string{"all"}}}})
		}
		settle()
		<-n.client.Subscribe(typeA, "all")
		synctest.Wait()
		active, _ := ordered(t, gateways, n)
		if got := n.names(typeA); !slices.Equal(got, []string{"good="}) {
			t.Errorf("holds %q", got)
		}
		if c := testutil.ToFloat64(active.server.cfg.Metrics.NACKs); c != 1 {
			t.Errorf("%v rejections counted", c)
		}
		n.mu.Lock()
		n.reject = nil
		n.mu.Unlock()
		active.cut()
		settle()
		if got := n.names(typeA); len(got) != 2 {
			t.Errorf("holds %q after the next connection", got)
		}
		n.mu.Lock()
		n.reject = map[string]error{"bad": errors.New("no address")}
		n.mu.Unlock()
		for _, g := range gateways {
			apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "bad", Groups: []string{"all"}, Body: []byte("x")}}})
		}
		synctest.Wait()
		if got := n.names(typeA); !slices.Equal(got, []string{"bad=", "good="}) {
			t.Errorf("holds %q after a rejected change", got)
		}
		for _, g := range gateways {
			apply(t, g, Update{Type: typeA, Removed: []string{"bad"}})
		}
		synctest.Wait()
		if got := n.names(typeA); !slices.Equal(got, []string{"good="}) {
			t.Errorf("holds %q after the removal of a rejected resource", got)
		}
	})
}

func TestReconnectIsSpreadOverClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway("g1", func(c *ServerConfig) { c.SpreadPerStream = 10 * time.Millisecond })
		g.start()
		t.Cleanup(g.close)
		var nodes []*node
		for i := range 100 {
			n := startNode(fmt.Sprint("n", i), []*gateway{g})
			t.Cleanup(n.close)
			nodes = append(nodes, n)
		}
		settle()
		active := func() (n int) {
			for _, x := range nodes {
				if x.client.Active() != "" {
					n++
				}
			}
			return n
		}
		if n := active(); n != 100 {
			t.Fatalf("%d clients are connected", n)
		}
		g.cut()
		time.Sleep(300 * time.Millisecond)
		if n := active(); n < 8 || n > 90 {
			t.Errorf("%d of 100 clients are back after 300 ms of 1 s", n)
		}
		time.Sleep(3 * time.Second)
		if n := active(); n != 100 {
			t.Errorf("%d of 100 clients are back after 3.3 s", n)
		}
	})
}

func TestClientFollowsTheListOfServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gateways []*gateway
		for i := range 4 {
			g := newGateway(fmt.Sprint("g", i))
			g.start()
			t.Cleanup(g.close)
			gateways = append(gateways, g)
		}
		var mu sync.Mutex
		listed := gateways
		n := startNode("n1", gateways, func(c *ClientConfig) {
			c.Servers = func() (out []Address) {
				mu.Lock()
				defer mu.Unlock()
				for _, g := range listed {
					out = append(out, Address{Name: g.name, HostPort: g.name})
				}
				return out
			}
		})
		t.Cleanup(n.close)
		settle()
		if s := n.client.Sources(); len(s) != connections {
			t.Fatalf("connected to %d servers", len(s))
		}
		for first := range gateways {
			mu.Lock()
			listed = gateways[first : first+1]
			mu.Unlock()
			settle()
			if s := n.client.Sources(); len(s) != 1 || s[0].GetGateway() != gateways[first].name || n.client.Active() != gateways[first].name {
				t.Errorf("connected to %v, active %q; want %s", s, n.client.Active(), gateways[first].name)
			}
		}
	})
}

func TestClientListsWhatItsCacheHas(t *testing.T) {
	_, version, _ := (Resource{Name: "same"}).encode(typeA)
	withNode(t, func(t *testing.T, gateways []*gateway, n *node) {
		for _, g := range gateways {
			apply(t, g, Update{Type: typeA, Resources: []Resource{{Name: "same"}}})
		}
		n.held[typeA]["gone"] = Resource{Name: "gone"}
		<-n.client.Subscribe(typeA, "same")
		settle()
		if got := n.names(typeA); len(got) != 0 || n.applied != 1 {
			t.Errorf("holds %q after %d updates; want one removal", got, n.applied)
		}
	}, func(c *ClientConfig) { c.Types[0].Held = map[string]string{"same": version, "gone": "old"} })
}

// stockServer is a server that knows no extensions and records what it receives.
type stockServer struct {
	mu       sync.Mutex
	acks     []string
	requests []*pb.DeltaDiscoveryRequest
	answer   func(*pb.DeltaDiscoveryRequest) *pb.DeltaDiscoveryResponse
}

func (s *stockServer) serve(g grpc.ServerStream) error {
	for {
		m := new(pb.DeltaDiscoveryRequest)
		if err := g.RecvMsg(m); err != nil {
			return nil
		}
		s.mu.Lock()
		s.requests = append(s.requests, m)
		if m.ResponseNonce != "" {
			s.acks = append(s.acks, m.ResponseNonce+m.GetErrorDetail().GetMessage())
		}
		s.mu.Unlock()
		if m.TypeUrl == SourceType || m.TypeUrl == SyncType || m.ResponseNonce != "" {
			continue
		}
		if r := s.answer(m); r != nil {
			if err := g.SendMsg(r); err != nil {
				return nil
			}
		}
	}
}

func TestClientOfAStockServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		encoded, _, _ := (Resource{Name: "uid1", Aliases: []string{"net/10.0.0.1"}}).encode(typeA)
		s := &stockServer{answer: func(m *pb.DeltaDiscoveryRequest) *pb.DeltaDiscoveryResponse {
			r := &pb.DeltaDiscoveryResponse{TypeUrl: m.TypeUrl, Nonce: fmt.Sprint(len(m.ResourceNamesSubscribe), m.ResourceNamesSubscribe)}
			for _, name := range m.ResourceNamesSubscribe {
				switch name {
				case "net/10.0.0.1":
					r.Resources = append(r.Resources, encoded)
				case "broken":
					r.Resources = append(r.Resources, []byte("\xff"))
				case "silent":
					return nil
				default:
					r.RemovedResources = append(r.RemovedResources, name)
				}
			}
			return r
		}}
		l := bufconn.Listen(64 << 10)
		server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 15 * time.Second})) // as istiod
		desc := service
		desc.Streams = []grpc.StreamDesc{{StreamName: methodName, ServerStreams: true, ClientStreams: true, Handler: func(_ any, g grpc.ServerStream) error { return s.serve(g) }}}
		server.RegisterService(&desc, s)
		go server.Serve(l)
		t.Cleanup(server.Stop)
		n := startNode("n1", nil, func(c *ClientConfig) {
			c.Servers = func() []Address { return []Address{{Name: "istiod", HostPort: "istiod"}} }
			c.dial = func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
		})
		t.Cleanup(n.close)
		start := time.Now()
		settle()
		if n.client.Active() != "istiod" || n.synced != 1 {
			t.Fatalf("active %q, synced %d", n.client.Active(), n.synced)
		}
		<-n.client.Subscribe(typeA, "net/10.0.0.1")
		<-n.client.Subscribe(typeA, "net/10.9.9.9")
		if waited := time.Since(start); waited > 5*time.Second {
			t.Errorf("answered after %v", waited)
		}
		if got := n.names(typeA); !slices.Equal(got, []string{"uid1="}) {
			t.Errorf("holds %q", got)
		}
		n.client.Subscribe(typeA, "broken")
		synctest.Wait()
		done := n.client.Subscribe(typeA, "silent")
		time.Sleep(time.Second)
		if isClosed(done) {
			t.Error("answered without a response")
		}
		<-done
		time.Sleep(10 * time.Minute) // pings
		synctest.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.acks) != 5 || !strings.Contains(s.acks[4], "resource of") { // two types, three names
			t.Errorf("acknowledged %q", s.acks)
		}
		sources := 0
		for _, m := range s.requests {
			if m.TypeUrl == SyncType {
				t.Error("a barrier was requested")
			}
			if m.TypeUrl == SourceType {
				sources++
			}
		}
		if sources != 1 {
			t.Errorf("%d connections", sources)
		}
	})
}

// FuzzResponse gives a client any response.
func FuzzResponse(f *testing.F) {
	encoded, _, _ := (Resource{Name: "r", Aliases: []string{"a"}, Body: []byte("x")}).encode(typeA)
	f.Add(typeA, encoded, "gone")
	f.Add(SourceType, encoded, "")
	f.Add(SyncType, encoded, "1")
	f.Fuzz(func(t *testing.T, typeURL string, encoded []byte, removed string) {
		h := newStore()
		c := NewClient(ClientConfig{Types: []ClientType{{URL: typeA}}, Handler: h})
		x := newSession(c, Address{}, func(error) {})
		x.source = &pb.Source{Synchronized: true}
		c.sessions[x], c.active = struct{}{}, x
		c.Subscribe(typeA, removed)
		g := &oneResponse{m: &pb.DeltaDiscoveryResponse{TypeUrl: typeURL, Resources: [][]byte{encoded}, RemovedResources: []string{removed}}}
		x.receive(t.Context(), g)
		for name, version := range c.types[0].held {
			if h.held[typeA][name].Version != version {
				t.Errorf("version %q of %q is not held", version, name)
			}
		}
	})
}

// oneResponse is a stream that ends after one response.
type oneResponse struct {
	grpc.ClientStream
	m *pb.DeltaDiscoveryResponse
}

func (o *oneResponse) RecvMsg(into any) error {
	if o.m == nil {
		return io.EOF
	}
	m := into.(*pb.DeltaDiscoveryResponse)
	m.TypeUrl, m.Resources, m.RemovedResources, o.m = o.m.TypeUrl, o.m.Resources, o.m.RemovedResources, nil
	return nil
}

func (o *oneResponse) Header() (metadata.MD, error) { return nil, nil }
