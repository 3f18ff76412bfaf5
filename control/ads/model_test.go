package ads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"pgregory.net/rapid"
)

const (
	typeA = "type.googleapis.com/test.A"
	typeB = "type.googleapis.com/test.B"
)

// gateway is a server that can be stopped, cut off and started again.
type gateway struct {
	name   string
	server *Server

	mu       sync.Mutex
	listener *bufconn.Listener
	grpc     *grpc.Server
	conns    []net.Conn
	stop     context.CancelFunc
}

// anyone accepts all claims and gives each node the key node/NODE_NAME of typeA.
func anyone(_ context.Context, c Claim) (Proof, error) {
	node := c.Metadata["NODE_NAME"]
	return Proof{Identity: node, Keys: map[string][]string{typeA: {"node/" + node}}}, nil
}

func newGateway(name string, change ...func(*ServerConfig)) *gateway {
	cfg := ServerConfig{Types: []string{typeA, typeB}, Gateway: name, Instance: "1", Authenticate: anyone, MaxIdentityStreams: 1000}
	for _, f := range change {
		f(&cfg)
	}
	g := &gateway{name: name, server: NewServer(cfg)}
	g.server.SetSource(true, false)
	return g
}

func (g *gateway) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	g.listener, g.stop = bufconn.Listen(64<<10), stop
	g.server.mu.Lock()
	g.server.closed = false // a new process
	g.server.mu.Unlock()
	g.grpc = grpc.NewServer(g.server.Options()...)
	g.server.Register(g.grpc)
	go g.grpc.Serve(g.listener)
	go g.server.Run(ctx)
}

func (g *gateway) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stop()
	g.grpc.Stop()
}

// cut breaks all connections.
func (g *gateway) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}

func (g *gateway) dial(ctx context.Context) (net.Conn, error) {
	c, err := g.listener.DialContext(ctx)
	if err == nil {
		g.mu.Lock()
		g.conns = append(g.conns, c)
		g.mu.Unlock()
	}
	return c, err
}

// store is a handler that keeps all resources.
type store struct {
	mu      sync.Mutex
	held    map[string]map[string]Resource // by type and name
	sources []string                       // of Activate
	synced  int
	applied int
	reject  map[string]error
}

func newStore() *store {
	return &store{held: map[string]map[string]Resource{typeA: {}, typeB: {}}}
}

func (s *store) Activate(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sources = append(s.sources, source)
}

func (s *store) Synced(string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced++
}

func (s *store) Apply(u Update) map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied++
	rejected := map[string]error{}
	for _, r := range u.Resources {
		if err := s.reject[r.Name]; err != nil {
			rejected[r.Name] = err
			continue
		}
		s.held[u.Type][r.Name] = r
	}
	for _, name := range u.Removed {
		delete(s.held[u.Type], name)
	}
	return rejected
}

// names returns what is held of a type, as "name=body".
func (s *store) names(typeURL string) (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, r := range s.held[typeURL] {
		out = append(out, n+"="+string(r.Body))
	}
	slices.Sort(out)
	return out
}

// node is a client and its store.
type node struct {
	*store
	client *Client
	stop   context.CancelFunc
	done   chan struct{}
}

func startNode(name string, gateways []*gateway, change ...func(*ClientConfig)) *node {
	n := &node{store: newStore(), done: make(chan struct{})}
	cfg := ClientConfig{
		Metadata: map[string]string{"NODE_NAME": name},
		Types:    []ClientType{{URL: typeA}, {URL: typeB}},
		Handler:  n.store,
		Servers: func() (out []Address) {
			for _, g := range gateways {
				out = append(out, Address{Name: g.name, HostPort: g.name})
			}
			return out
		},
		dial: func(ctx context.Context, name string) (net.Conn, error) {
			for _, g := range gateways {
				if g.name == name {
					return g.dial(ctx)
				}
			}
			return nil, errors.New("no such gateway")
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	n.client = NewClient(cfg)
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		defer close(n.done)
		n.client.Run(ctx)
	}()
	return n
}

func (n *node) close() {
	n.stop()
	<-n.done
}

// model is what exists and what one node subscribes, and says what it should hold.
type model struct {
	resources map[string]map[string]Resource // by type and name
	keys      map[string]map[string]bool     // subscribed, by type
	all       map[string]bool                // wildcard, by type
}

func (m *model) want(typeURL string) (out []string) {
	for n, r := range m.resources[typeURL] {
		if m.all[typeURL] || slices.ContainsFunc(r.keys(), func(k string) bool { return m.keys[typeURL][k] }) {
			out = append(out, n+"="+string(r.Body))
		}
	}
	slices.Sort(out)
	return out
}

func TestClientHoldsWhatItSubscribes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) { checkSchedule(rt) })
	})
}

// checkSchedule runs a random schedule of changes, subscriptions, outages and
// elections, and compares with the model whenever everything is quiet.
func checkSchedule(t *rapid.T) {
	gateways := []*gateway{newGateway("g1"), newGateway("g2")}
	for _, g := range gateways {
		g.start()
	}
	m := &model{resources: map[string]map[string]Resource{typeA: {}, typeB: {}}, keys: map[string]map[string]bool{typeA: {"node/n1": true}, typeB: {}}, all: map[string]bool{typeB: rapid.Bool().Draw(t, "wildcard")}}
	n := startNode("n1", gateways, func(c *ClientConfig) { c.Types[1].Wildcard = m.all[typeB] })
	defer func() {
		n.close()
		for _, g := range gateways {
			g.close()
		}
		synctest.Wait()
	}()
	// A key keeps the type without a name from the on-demand form, in which held names
	// count as subscribed.
	for _, u := range []string{typeA, typeB} {
		m.keys[u]["always"] = true
		n.client.Subscribe(u, "always")
	}
	names := rapid.SampledFrom([]string{"r1", "r2", "r3", "r4", "r5", "r6"})
	groups := rapid.SampledFrom([]string{"always", "s1", "s2", "node/n1", "node/n2"})
	types := rapid.SampledFrom([]string{typeA, typeB})
	up := map[*gateway]bool{gateways[0]: true, gateways[1]: true}
	t.Repeat(map[string]func(*rapid.T){
		"apply": func(t *rapid.T) {
			u := Update{Type: types.Draw(t, "type")}
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				name := names.Draw(t, "name")
				if rapid.IntRange(0, 3).Draw(t, "removed") == 0 {
					u.Removed = append(u.Removed, name)
					continue
				}
				r := Resource{Name: name, Aliases: []string{"alias/" + name}, Body: []byte(rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "body"))}
				r.Groups = rapid.SliceOfN(groups, 0, 2).Draw(t, "groups")
				u.Resources = append(u.Resources, r)
			}
			for _, g := range gateways {
				if err := g.server.Apply(u); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range u.Resources {
				m.resources[u.Type][r.Name] = r
			}
			for _, name := range u.Removed {
				delete(m.resources[u.Type], name)
			}
		},
		"subscribe": func(t *rapid.T) {
			u, k := types.Draw(t, "type"), rapid.OneOf(names, groups, rapid.Just("alias/r1")).Draw(t, "key")
			m.keys[u][k] = true
			n.client.Subscribe(u, k)
		},
		"unsubscribe": func(t *rapid.T) {
			u, k := types.Draw(t, "type"), rapid.OneOf(names, groups, rapid.Just("alias/r1")).Draw(t, "key")
			if k == "always" {
				t.Skip("keeps the type subscribed")
			}
			if u != typeA || k != "node/n1" { // the proof has it
				delete(m.keys[u], k)
			}
			n.client.Unsubscribe(u, k)
		},
		"cut": func(t *rapid.T) { rapid.SampledFrom(gateways).Draw(t, "gateway").cut() },
		"source": func(t *rapid.T) {
			g := rapid.SampledFrom(gateways).Draw(t, "gateway")
			up[g] = rapid.Bool().Draw(t, "synchronized")
			g.server.SetSource(up[g], rapid.Bool().Draw(t, "stale"))
		},
		"wait": func(t *rapid.T) { time.Sleep(time.Duration(rapid.IntRange(1, 400).Draw(t, "ms")) * time.Millisecond) },
		"step": func(t *rapid.T) { synctest.Wait() },
		"quiet": func(t *rapid.T) {
			time.Sleep(5 * time.Second) // more than all backoff
			synctest.Wait()
			active := n.client.Active()
			if !up[gateways[0]] && !up[gateways[1]] {
				if active != "" {
					t.Fatalf("%s is active and not synchronized", active)
				}
				return
			}
			for _, g := range gateways {
				if g.name == active && !up[g] || active == "" {
					t.Fatalf("active source %q; synchronized are %v", active, up)
				}
			}
			n.check(t, m)
		},
	})
}

// check compares with the model when everything is quiet.
func (n *node) check(t interface{ Fatalf(string, ...any) }, m *model) {
	for _, u := range []string{typeA, typeB} {
		if got, want := n.names(u), m.want(u); !slices.Equal(got, want) {
			t.Fatalf("%s: holds %q; want %q, keys %v", u, got, want, slices.Sorted(maps.Keys(m.keys[u])))
		}
		n.client.mu.Lock()
		held := n.client.typeOf(u).held
		versions := maps.Clone(held)
		for name, s := range n.client.typeOf(u).names {
			if !s.done {
				t.Fatalf("%s: %s has no answer", u, name)
			}
		}
		n.client.mu.Unlock()
		for name, r := range n.held[u] {
			_, version, _ := m.resources[u][name].encode(u)
			if r.Version != version || versions[name] != version {
				t.Fatalf("%s: %s has version %q, the client %q; want %q", u, name, r.Version, versions[name], version)
			}
		}
		if len(versions) != len(n.held[u]) {
			t.Fatalf("%s: client has versions of %d resources, the handler %d resources", u, len(versions), len(n.held[u]))
		}
	}
}

func (m *model) String() string { return fmt.Sprint(m.resources) }
