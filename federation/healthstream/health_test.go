package healthstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// node is a node proxy in small.
type node struct {
	*Client
	ledger *peer.Ledger
	cancel context.CancelFunc

	mu      sync.Mutex
	current map[federation.Key]federation.Record
}

func (w *world) node(name string, incarnation uint64, gateways func() []*mesh.Gateway, change func(*ClientConfig)) *node {
	n := &node{ledger: peer.NewLedger(0), current: map[federation.Key]federation.Record{}}
	cfg := ClientConfig{
		Node: name, Network: "west", Incarnation: incarnation, Self: workload("nodeproxy"), Identity: w.identity,
		Gateways: gateways, Ledger: n.ledger, Log: zerolog.Nop(), MaxBackoff: 200 * time.Millisecond,
		Current: func() []federation.Record {
			n.mu.Lock()
			defer n.mu.Unlock()
			var out []federation.Record
			for _, r := range n.current {
				out = append(out, r)
			}
			return out
		},
	}
	if change != nil {
		change(&cfg)
	}
	n.Client = NewClient(cfg)
	var ctx context.Context
	ctx, n.cancel = context.WithCancel(context.Background())
	w.wg.Go(func() { n.Run(ctx) })
	w.t.Cleanup(n.cancel)
	return n
}

// observe changes the node's state and reports the edge.
func (n *node) observe(id mesh.EndpointID, state federation.FactState) {
	r := federation.Record{Network: "west", Endpoint: &federation.EndpointFact{Endpoint: id, Port: 8080, State: state, Reason: "refused", Health: 0.5}}
	n.mu.Lock()
	n.current[r.Key()] = r
	n.mu.Unlock()
	n.Report(r)
}

// one makes a single gateway of west.
func one(t testing.TB, change func(*ServerConfig)) (*world, *site, func() []*mesh.Gateway) {
	w := newWorld(t)
	s := w.start(w.add("west", "gw-1"), change)
	return w, s, w.all
}

// remote is a summary of another network, as if east's gateway had sent it.
func remote(sequence uint64, name string, healthy uint32) federation.Record {
	return federation.Record{
		Network: "east", Origin: federation.Origin{Name: "east/gw-1", Incarnation: 1}, Sequence: sequence,
		Summary: &federation.SummaryFact{Service: name, Port: 80, Ready: 10, Healthy: healthy, ReadyCapacity: 10, HealthyCapacity: healthy},
	}
}

func TestReportsGoUpAndSummariesComeDown(t *testing.T) {
	w, s, gateways := one(t, nil)
	s.ledger.Merge(remote(1, service, 9))
	own := remote(1, service, 3)
	own.Network, own.Origin.Name = "west", "west/gw-1"
	s.ledger.Merge(own) // of the node's own network: its pods are other pods' neighbours
	n := w.node("node-1", 1, gateways, nil)
	eventually(t, "the node is attached and has the state", func() bool { return n.Attached() == 1 && believes(n.ledger, "east", 9) })
	if got := s.health.Nodes(); !slices.Equal(got, []string{"node-1"}) {
		t.Errorf("nodes: got %v", got)
	}
	var up, down []time.Duration
	for i := range uint32(20) {
		start := time.Now()
		n.observe(7, federation.FactState(i%3))
		r := <-s.reports
		up = append(up, time.Since(start))
		if r.Endpoint.State != federation.FactState(i%3) || r.Origin.Name != "west/node-1" || r.Network != "west" {
			t.Fatalf("report %d: got %v", i, r)
		}
		s.ledger.Merge(remote(uint64(10+i), service, i%9))
		down = append(down, eventually(t, "the node has the edge", func() bool { return believes(n.ledger, "east", i%9) }))
	}
	slices.Sort(up)
	slices.Sort(down)
	t.Logf("report to OnReport: median %v; ledger to node: median %v", up[len(up)/2], down[len(down)/2])
	if _, _, ok := n.ledger.Summary("west", service, 80); !ok {
		t.Error("the node was not told of its own network")
	}
	if fact, _, ok := s.ledger.Endpoint("west", 7, 8080); !ok || fact.State != federation.FactState(19%3) {
		t.Errorf("gateway's ledger: got %v %v", fact, ok)
	}
}

func TestFullStateAtAttachAndAfterGatewayRestart(t *testing.T) {
	w, s, gateways := one(t, nil)
	n := w.node("node-1", 1, func() []*mesh.Gateway { return nil }, nil)
	n.observe(7, federation.Ejected) // nobody to tell
	n.cancel()
	m := w.node("node-1", 2, gateways, nil)
	m.observe(8, federation.Ejected)
	if r := <-s.reports; r.Endpoint.Endpoint != 8 || r.Origin.Incarnation != 2 {
		t.Fatalf("at attach: got %v", r)
	}
	s.stop()
	eventually(t, "the node has lost its gateway", func() bool { return m.Attached() == 0 })
	again := w.start(s.Gateway, nil)
	if r := <-again.reports; r.Endpoint.Endpoint != 8 || r.Endpoint.State != federation.Ejected {
		t.Fatalf("after the restart: got %v", r)
	}
	eventually(t, "attached again", func() bool { return m.Attached() == 1 })
}

func TestNodeKeepsStreamToEveryGateway(t *testing.T) {
	w := newWorld(t)
	sites := []*site{w.start(w.add("west", "gw-1"), nil), w.start(w.add("west", "gw-2"), nil)}
	n := w.node("node-1", 1, w.all, nil)
	eventually(t, "attached to both", func() bool { return n.Attached() == 2 })
	n.observe(7, federation.Ejected)
	for _, s := range sites {
		if r := <-s.reports; r.Endpoint.Endpoint != 7 {
			t.Errorf("%s: got %v", s.Name, r)
		}
		s.ledger.Merge(remote(1, service, 5))
	}
	eventually(t, "the node knows what east says", func() bool { return believes(n.ledger, "east", 5) })
	sites[0].stop()
	eventually(t, "one stream is left", func() bool { return n.Attached() == 1 })
	sites[1].ledger.Merge(remote(2, service, 4))
	eventually(t, "the other gateway is enough", func() bool { return believes(n.ledger, "east", 4) })
}

func TestAttachHooksAndNewerIncarnationTakesOver(t *testing.T) {
	events := make(chan string, 100)
	w, s, gateways := one(t, func(c *ServerConfig) {
		c.OnAttach = func(n string) { events <- "+" + n }
		c.OnDetach = func(n string) { events <- "-" + n }
	})
	first := w.node("node-1", 1, gateways, nil)
	if got := <-events; got != "+node-1" {
		t.Fatalf("got %s", got)
	}
	second := w.node("node-1", 2, gateways, nil)
	second.observe(9, federation.Ejected)
	eventually(t, "the second life is heard", func() bool { _, _, ok := s.ledger.Endpoint("west", 9, 8080); return ok })
	eventually(t, "the first life is out", func() bool { return first.Attached() == 0 && second.Attached() == 1 })
	first.cancel()
	second.cancel()
	if got := <-events; got != "-node-1" {
		t.Errorf("got %s, want one detach only", got)
	}
}

func TestRefreshReachesNodes(t *testing.T) {
	w, s, gateways := one(t, func(c *ServerConfig) { c.Refresh = 20 * time.Millisecond })
	n := w.node("node-1", 1, gateways, func(c *ClientConfig) { c.Refresh = 20 * time.Millisecond })
	s.ledger.Merge(remote(1, service, 9))
	eventually(t, "the node has it", func() bool { return believes(n.ledger, "east", 9) })
	s.ledger.Merge(remote(2, service, 9))
	eventually(t, "the node has the newer stamp", func() bool {
		r, ok := n.ledger.Best(federation.SummarySubject("east", service, 80))
		return ok && r.Sequence == 2
	})
	n.observe(7, federation.Ejected)
	first := <-s.reports
	eventually(t, "the gateway hears refreshes", func() bool { return (<-s.reports).Sequence > first.Sequence+3 })
}

func TestReportNeverBlocksAndKeepsTheNewest(t *testing.T) {
	w, s, gateways := one(t, nil)
	n := w.node("node-1", 1, gateways, nil)
	eventually(t, "attached", func() bool { return n.Attached() == 1 })
	for range 3 {
		for id := range mesh.EndpointID(2 * maxPending) {
			n.Report(federation.Record{Endpoint: &federation.EndpointFact{Endpoint: id + 1, Port: 80, State: federation.Ejected}})
		}
	}
	n.observe(7, federation.Healthy)
	n.observe(7, federation.Ejected)
	eventually(t, "the last word wins", func() bool {
		f, _, ok := s.ledger.Endpoint("west", 7, 8080)
		return ok && f.State == federation.Ejected
	})
	n.Report(federation.Record{Summary: remote(1, service, 0).Summary}) // not a node's to say
}

func TestUplinkIsBoundedAndAsksForFullStateBeyond(t *testing.T) {
	u := newUplink(nil)
	u.take(time.Now()) // the full state at attach
	put := func(id mesh.EndpointID, sequence uint64) {
		u.put([]federation.Record{{
			Network: "west", Origin: federation.Origin{Name: "west/n", Incarnation: 1}, Sequence: sequence,
			Endpoint: &federation.EndpointFact{Endpoint: id, Port: 80},
		}}, time.Now())
	}
	put(1, 9)
	put(1, 8) // overtaken on the way here
	if records, resync := u.take(time.Now()); len(records) != 1 || records[0].Sequence != 9 || resync {
		t.Errorf("got %v, resync %v; want sequence 9 alone", records, resync)
	}
	for id := range mesh.EndpointID(3 * maxPending) {
		put(id+1, 10)
	}
	if records, resync := u.take(time.Now()); len(records) > maxPending || !resync {
		t.Errorf("got %d records, resync %v; want at most %d and a resync", len(records), resync, maxPending)
	}
}

// raw attaches to s without a client.
func (w *world) raw(s *site, as, alpn string) (*tls.Conn, error) {
	return link.Dial(link.TCP).TLS(context.Background(), w.identity, workload(as), s.Identity, s.listener.Addr().String(), alpn, 5*time.Second)
}

func hello(node, network string) *federationpb.HealthMessage {
	return &federationpb.HealthMessage{Message: &federationpb.HealthMessage_Hello{Hello: &federationpb.Hello{Node: node, Network: network, Incarnation: 1}}}
}

func reportOf(t *testing.T, records ...federation.Record) *federationpb.HealthMessage {
	t.Helper()
	b, err := federation.ToBatches(records)
	if err != nil {
		t.Fatal(err)
	}
	return &federationpb.HealthMessage{Message: &federationpb.HealthMessage_Records{Records: b}}
}

func TestHealthServerRefuses(t *testing.T) {
	w, s, gateways := one(t, func(c *ServerConfig) {
		c.OnNode = func(_ string, id mesh.EndpointID) bool { return id < 100 }
	})
	good := w.node("good", 1, gateways, nil)
	eventually(t, "the good node is attached", func() bool { return good.Attached() == 1 })
	endpoint := federation.Record{
		Network: "west", Origin: federation.Origin{Name: "west/bad", Incarnation: 1}, Sequence: 1,
		Endpoint: &federation.EndpointFact{Endpoint: 7, Port: 80, State: federation.Ejected},
	}
	with := func(change func(*federation.Record)) federation.Record {
		r := endpoint
		change(&r)
		return r
	}
	for _, c := range []struct {
		name, as, reason string
		hello            *federationpb.HealthMessage
		then             *federationpb.HealthMessage
		bytes            []byte
	}{
		{name: "identity that may not attach", as: "app", reason: "identity", hello: hello("bad", "west")},
		{name: "a gateway as a node", as: "gateway-east", reason: "identity", hello: hello("bad", "west")},
		{name: "node of another network", as: "nodeproxy", reason: "foreign", hello: hello("bad", "east")},
		{name: "no hello", as: "nodeproxy", reason: "malformed", hello: reportOf(t, endpoint)},
		{name: "hello without a name", as: "nodeproxy", reason: "malformed", hello: hello("", "west")},
		{name: "report for another network", as: "nodeproxy", reason: "foreign", hello: hello("bad", "west"),
			then: reportOf(t, with(func(r *federation.Record) { r.Network = "east" }))},
		{name: "report in another's name", as: "nodeproxy", reason: "foreign", hello: hello("bad", "west"),
			then: reportOf(t, with(func(r *federation.Record) { r.Origin.Name = "west/good" }))},
		{name: "a summary", as: "nodeproxy", reason: "foreign", hello: hello("bad", "west"), then: reportOf(t, remote(1, service, 0))},
		{name: "oversized frame", as: "nodeproxy", reason: "oversized", hello: hello("bad", "west"), bytes: []byte{0x7f, 0xff, 0xff, 0xff}},
		{name: "garbage", as: "nodeproxy", reason: "malformed", hello: hello("bad", "west"), bytes: []byte{0, 0, 0, 3, 0xff, 0xff, 0xff}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := rejected(s.metrics, c.reason)
			conn, err := w.raw(s, c.as, ALPN)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			h := &healthConn{conn: conn, dead: 10 * time.Second}
			if err := h.write(c.hello); err != nil {
				t.Fatal(err)
			}
			if c.then != nil {
				h.write(c.then)
			}
			conn.Write(c.bytes)
			for err = nil; err == nil; {
				_, err = h.read()
			}
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Errorf("the stream was not closed")
			}
			eventually(t, "counted as "+c.reason, func() bool { return rejected(s.metrics, c.reason) > before })
		})
	}
	if got := len(s.ledger.Records()); got != 0 {
		t.Errorf("the ledger believed %v", s.ledger.Records())
	}
	good.observe(500, federation.Ejected) // not on its node: dropped, not fatal
	good.observe(7, federation.Ejected)
	if r := <-s.reports; r.Endpoint.Endpoint != 7 || good.Attached() != 1 {
		t.Errorf("good node afterwards: got %v, %d attached", r, good.Attached())
	}
}

func TestNodeOfOtherTrustDomainsGatewayIsNotServed(t *testing.T) {
	w, s, _ := one(t, nil)
	// The client expects the gateway's identity; somebody else answers there.
	_, err := link.Dial(link.TCP).TLS(t.Context(), w.identity, workload("nodeproxy"), workload("gateway-east"), s.listener.Addr().String(), ALPN, 5*time.Second)
	if err == nil {
		t.Error("got a connection to the wrong gateway")
	}
}

func TestSlowNodeIsCutOffAndHarmsNobody(t *testing.T) {
	w, s, gateways := one(t, func(c *ServerConfig) { c.Dead = 300 * time.Millisecond })
	quick := w.node("quick", 1, gateways, func(c *ClientConfig) { c.Heartbeat = 50 * time.Millisecond })
	conn, err := w.raw(s, "nodeproxy", ALPN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := &healthConn{conn: conn, dead: 10 * time.Second}
	if err := h.write(hello("slow", "west")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are attached", func() bool { return len(s.health.Nodes()) == 2 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var beating sync.WaitGroup
	beating.Go(func() { // it lives, but does not read
		for ctx.Err() == nil && h.heartbeat() == nil {
			link.Pause(ctx, 50*time.Millisecond)
		}
	})
	wide := make([]mesh.EndpointID, federation.MaxExceptions)
	for i := range wide {
		wide[i] = mesh.EndpointID(i + 1)
	}
	sequence := uint64(0)
	eventually(t, "the slow node is cut off", func() bool {
		for i := range 20 {
			sequence++
			r := remote(sequence, fmt.Sprint("svc-", i), uint32(sequence%9))
			r.Summary.Exceptions = wide
			s.ledger.Merge(r)
		}
		return !slices.Contains(s.health.Nodes(), "slow")
	})
	s.ledger.Merge(remote(sequence+1, service, 6))
	eventually(t, "the quick node is up to date", func() bool { return believes(quick.ledger, "east", 6) })
	cancel()
	conn.Close()
	beating.Wait()
}
