package nodeproxy

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	gwpicker "github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/route"
)

// distant is a client's node proxy and, far away behind gateways, pods: in memory and
// in virtual time, in which only the line takes any. Proxy, pool, sessions and what a
// gateway chooses by are production's; otherwise a gateway only passes on.
type distant struct {
	delay    time.Duration // one way
	net      simnet.Network
	client   *Proxy
	pods     []*mesh.Workload
	gateways []*mesh.Gateway
	sources  []*mesh.Workload // each with an identity of its own
	groups   []int            // pods that each gateway reaches, one after the other and nobody else's; nil: each reaches all
	balancer *testlb.Balancer // before all gateways, at fronts; nil: each has an address of its own
	fronts   func() []netip.AddrPort
	silent   bool // gateways know nothing of pins and avoided pods, and name nobody
	ctx      context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	mu        sync.Mutex
	rng       *rand.Rand
	out       map[mesh.EndpointID]bool
	begun     int // gateways
	listeners map[string]net.Listener
	processes map[string]*distantGateway
	lines     map[string][]*simnet.Conn                             // by where they lead
	got       map[mesh.EndpointID]int                               // connections
	lost      map[mesh.EndpointID]bool                              // whose nodes hear nothing any more, and say nothing
	handshake int                                                   // of sessions with pods
	refused   func() (status int, h hbone.Header)                   // of tunnels, by gateways; nil: they serve
	refuse    func(pod *mesh.Workload) (status int, h hbone.Header) // of connections to pods; status 0, or nil: they are served
	slow      func(pod *mesh.Workload) hbone.Header                 // that a pod says before it serves, half a second later; nil: it serves at once
}

const distantHost = "far.default"

func newDistant(pods, gateways int, delay time.Duration) *distant {
	w := &distant{delay: delay, net: simnet.Network{Options: simnet.Options{Delay: delay}}, rng: rand.New(rand.NewPCG(1, uint64(pods))),
		out: map[mesh.EndpointID]bool{}, listeners: map[string]net.Listener{}, processes: map[string]*distantGateway{}, lines: map[string][]*simnet.Conn{}, got: map[mesh.EndpointID]int{}}
	w.ctx, w.stop = context.WithCancel(context.Background())
	cfg := DefaultConfig()
	cfg.Node, cfg.Network = "east-1", "east"
	cfg.Federation.Health = false
	p := newProxy(cfg, zerolog.Nop())
	p.ids = identity.NewManager(torturedSource{}, zerolog.Nop())
	p.late = func(time.Time) bool { return false }
	p.dialHop = w.dial
	p.witness = newWitness(p.data, cfg, p.declared, w.dial, p.changed, zerolog.Nop())
	w.client = p
	for i := range gateways {
		w.gateways = append(w.gateways, &mesh.Gateway{Name: fmt.Sprint("gw-", i+1), Network: "west", Identity: torturedID("gateway"),
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, 0, byte(i + 1)}), 15008)})
	}
	for i := range pods {
		pod := &mesh.Workload{UID: fmt.Sprint("west/default/far-", i), Name: fmt.Sprint("far-", i), Namespace: "default", Network: "west", Node: "west-1",
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})}, Capacity: 1, Identity: torturedID("far")}
		pod.Endpoint = mesh.EndpointIDOf("west", pod.UID)
		w.pods = append(w.pods, pod)
	}
	w.connectFrom(1)
	for _, g := range w.gateways {
		w.listen(g.Address.String())
	}
	return w
}

// connectFrom has n sources connect, which is one otherwise.
func (w *distant) connectFrom(n int) {
	w.sources = nil
	for i := range n {
		uid, name := torturedUID, "client"
		if i > 0 {
			uid, name = fmt.Sprint(torturedUID, i), fmt.Sprint("client", i)
		}
		w.sources = append(w.sources, &mesh.Workload{UID: uid, Name: name, Namespace: "default", Network: "east", Node: "east-1", Endpoint: mesh.EndpointIDOf("east", uid),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})}, Capacity: 1, Identity: torturedID(name)})
	}
	w.discover()
}

var distantService = &mesh.Service{Name: "far", Namespace: "default", Hostname: distantHost, Scope: mesh.ScopeGlobal, Takeover: true, Ports: []mesh.Port{{Service: 80, Target: 8080}}}

// discover has the client know whom there is, without those that are out.
func (w *distant) discover() {
	parts := mesh.Parts{Workloads: slices.Clone(w.sources), Gateways: w.gateways, Members: map[string][]string{}, Services: []*mesh.Service{distantService}}
	w.mu.Lock()
	for _, pod := range w.pods {
		if !w.out[pod.Endpoint] {
			parts.Workloads = append(parts.Workloads, pod)
			parts.Members[distantHost] = append(parts.Members[distantHost], pod.UID)
		}
	}
	w.mu.Unlock()
	w.client.store.Swap(mesh.NewSnapshot(1, parts))
	w.client.rediscover(w.client.data)
	if w.client.view.reports {
		w.client.view.heard(picker.Share{Network: "west", Service: distantHost, Port: 80}, w.client.store.Current(), time.Now())
	}
}

// reach are the pods that the gateway at place i reaches.
func (w *distant) reach(i int) []*mesh.Workload {
	if w.groups == nil {
		return w.pods
	}
	first := 0
	for _, n := range w.groups[:i] {
		first += n
	}
	return w.pods[first : first+w.groups[i]]
}

// tellHealth has the gateways say what they can deliver from now on, each time that
// discover is called: whoever is out is gone.
func (w *distant) tellHealth() {
	w.client.view.known = func(string, string) (healthstream.Known, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		offered := func(pods []*mesh.Workload) (h record.Health) {
			for _, p := range pods {
				if w.out[p.Endpoint] {
					h.Exceptions = append(h.Exceptions, record.Exception{Endpoint: p.Endpoint, Cause: record.Gone})
				} else {
					h.Ready++
				}
			}
			h.Healthy, h.ReadyCapacity, h.HealthyCapacity = h.Ready, h.Ready, h.Ready
			return h
		}
		h := offered(w.pods)
		k := healthstream.Known{Summaries: map[uint16]federation.SummaryFact{80: {Service: distantHost, Port: 80, Ready: h.Ready, Healthy: h.Ready, ReadyCapacity: h.Ready, HealthyCapacity: h.Ready}}}
		for i, g := range w.gateways {
			d := healthstream.Delivery{Gateway: g.Name, Live: true, Health: map[uint16]record.Health{80: offered(w.reach(i))}}
			if w.groups != nil {
				d.Group = fmt.Sprint(i)
			}
			k.Deliveries = append(k.Deliveries, d)
		}
		return k, true
	}
	w.client.view.reports = true
	w.discover()
}

func (w *distant) dial(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, os.ErrDeadlineExceeded)
	defer cancel()
	to, over := addr.String(), func() {}
	if w.balancer != nil && slices.Contains(w.fronts(), addr) {
		backend, ended, err := w.balancer.Pick(netip.AddrFrom4([4]byte{10, 0, 0, 1}))
		if err != nil {
			return nil, err
		}
		to, over = backend, ended
	} else if w.balancer != nil {
		return nil, fmt.Errorf("dial %s: %w", addr, syscall.ECONNREFUSED)
	}
	c, err := w.net.Dial(ctx, to)
	addr = netip.MustParseAddrPort(to)
	if err == nil {
		w.mu.Lock()
		w.lines[addr.String()] = append(w.lines[addr.String()], c)
		w.mu.Unlock()
		return &counted{Conn: c, over: over}, nil
	}
	over()
	return nil, err
}

// counted is a connection that tells its end.
type counted struct {
	*simnet.Conn
	over func()
}

func (c *counted) Close() error { c.over(); return c.Conn.Close() }

// listen has a gateway answer at addr.
func (w *distant) listen(addr string) {
	l, err := w.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.listeners[addr] = l
	g := w.newGateway()
	w.processes[addr] = g
	w.mu.Unlock()
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() {
				t, err := hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(torturedID("gateway"), nil, hbone.ServerProtocols(fmt.Sprint("west/gw-", g.nth+1))...))
				if err == nil {
					g.sessions.Serve(w.ctx, hbone.NewServer(t, hbone.DefaultConfig(), g.forward))
				}
			})
		}
	})
}

// lose cuts every line to a gateway and lets it answer no more.
func (w *distant) lose(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners[addr].Close()
	for _, c := range w.lines[addr] {
		c.Cut()
	}
	w.lines[addr] = nil
}

// distantGateway is one gateway process: the pods are beside it.
type distantGateway struct {
	*distant
	picker   *gwpicker.Picker
	nth      int
	sessions hbone.Group
	cut      bool                     // from its pods
	asked    int                      // for tunnels
	offered  map[mesh.EndpointID]bool // that was out when service was offered
	service  *gwpicker.Service
}

// newGateway is the next gateway; the caller holds mu.
func (w *distant) newGateway() *distantGateway {
	nth, random := w.begun, rand.New(rand.NewPCG(uint64(w.begun), 3))
	w.begun++
	return &distantGateway{distant: w, nth: nth, picker: gwpicker.New(gwpicker.Config{Network: "west", Hops: health.DefaultConfig(), Listed: func(mesh.EndpointID) bool { return true },
		Jitter: func() float64 { return 0.5 }, Seed: random.Uint64, Nth: func() int { return nth }})}
}

// choose is the pod for one session; the caller holds mu.
func (g *distantGateway) choose(r gwpicker.Request) (gwpicker.Choice, bool) {
	if g.service == nil || !maps.Equal(g.offered, g.out) {
		members := slices.DeleteFunc(slices.Clone(g.reach(g.nth%len(g.gateways))), func(p *mesh.Workload) bool { return g.out[p.Endpoint] })
		slices.SortFunc(members, func(a, b *mesh.Workload) int { return strings.Compare(a.UID, b.UID) })
		g.offered = maps.Clone(g.out)
		g.service = g.picker.Offer(route.Exported{Service: distantService, Port: distantService.Ports[0], Members: members}, time.Now())
	}
	return g.picker.Pick(g.service, r, time.Now())
}

func (g *distantGateway) forward(ctx context.Context, in *hbone.Incoming) {
	w := g.distant
	r := gwpicker.Request{Pin: mesh.EndpointID(header.ParseEndpoint(in.Header.Get(header.NamePin))), Avoid: header.ParseAvoid(in.Header.Get(header.NameAvoid))}
	if w.silent {
		r = gwpicker.Request{}
	}
	w.mu.Lock()
	cut := g.cut
	g.asked++
	c, ok := g.choose(r)
	w.mu.Unlock()
	if w.refused != nil {
		in.Refuse(w.refused())
		return
	}
	if cut {
		in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonNoEndpoint)})
		return
	}
	if !ok {
		in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonPinnedGone)})
		return
	}
	defer func() { g.picker.Done(&c, gwpicker.Outcome{}, time.Now()) }()
	pod := c.Pod
	h := hbone.Header{header.NameEndpoint: pod.Endpoint.String(), header.NameWeight: "1"}
	if w.silent {
		h = nil
	}
	st, err := in.Accept(h)
	if err != nil {
		return
	}
	a, b := simnet.Pair(simnet.Options{})
	w.mu.Lock()
	w.handshake++
	w.lines[pod.UID] = append(w.lines[pod.UID], a)
	w.mu.Unlock()
	w.work.Go(func() { w.serve(pod, b) })
	hbone.Relay(ctx, st, a)
}

// serve is a pod, and its application, which says back what it is told.
func (w *distant) serve(pod *mesh.Workload, conn net.Conn) {
	t, err := hbone.ServerTLS(w.ctx, &losable{Conn: conn, lost: func() bool { return w.isLost(pod) }, end: w.ctx}, w.client.ids.ServerTLS(pod.Identity, nil, "h2"))
	if err != nil {
		return
	}
	hbone.NewServer(t, hbone.DefaultConfig(), func(ctx context.Context, in *hbone.Incoming) {
		if w.refuse != nil {
			if status, h := w.refuse(pod); status != 0 {
				in.Refuse(status, h)
				return
			}
		}
		if w.slow != nil {
			if h := w.slow(pod); h != nil {
				in.Inform(h)
				pause(ctx, 500*time.Millisecond)
			}
		}
		h := hbone.Header{header.NameEndpoint: pod.Endpoint.String()}
		if w.silent {
			h = nil
		}
		st, err := in.Accept(h)
		if err != nil {
			return
		}
		w.mu.Lock()
		w.got[pod.Endpoint]++
		w.mu.Unlock()
		io.Copy(st, st)
		st.CloseWrite()
	}).Serve(w.ctx)
}

// losable is a connection of a pod whose node may be lost.
type losable struct {
	net.Conn
	lost func() bool
	end  context.Context
}

func (c *losable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.lost() {
		<-c.end.Done()
	}
	return n, err
}

func (w *distant) isLost(pod *mesh.Workload) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost[pod.Endpoint]
}

// connect is one connection of the client's application; it returns when the first byte
// came back, in round trips.
func (w *distant) connect(id int, lasts time.Duration) (trips float64, err error) {
	from := w.sources[id%len(w.sources)]
	app, other := simnet.PairOf(simnet.Options{}, fmt.Sprintf("%s:%d", from.Addresses[0], 10000+id%50000), from.Addresses[0].String()+":20000")
	defer app.Close()
	w.work.Go(func() {
		if rest := w.client.carry(w.client.data, other, from.UID, route.Flow{Host: distantHost, Port: 80}, nil, nil, nil); rest != nil {
			rest(w.client.data)
		}
	})
	began := time.Now()
	if _, err = app.Write([]byte{1}); err == nil {
		_, err = io.ReadFull(app, make([]byte, 1))
	}
	trips = float64(time.Since(began)) / float64(2*w.delay)
	if err == nil {
		time.Sleep(lasts)
	}
	return trips, err
}

// forget begins to count connections anew.
func (w *distant) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.got)
}

func (w *distant) handshakes() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.handshake
}

func (w *distant) end() {
	w.client.kept.Close()
	w.client.pool.Close()
	w.stop()
	w.client.stop()
	w.mu.Lock()
	for _, l := range w.listeners {
		l.Close()
	}
	for _, lines := range w.lines {
		for _, c := range lines {
			c.Cut()
		}
	}
	w.mu.Unlock()
	w.client.gatewayProbes.Wait()
	w.client.podProbes.Wait()
	w.work.Wait()
	synctest.Wait()
}
