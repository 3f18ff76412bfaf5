package nodeproxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// distant is a client's node proxy and, far away behind gateways, pods: in memory and
// in virtual time, in which only the line takes any. Proxy, pool and sessions are
// production's; a gateway only chooses at random and passes on.
type distant struct {
	delay    time.Duration // one way
	net      simnet.Network
	client   *Proxy
	pods     []*mesh.Workload
	gateways []*mesh.Gateway
	silent   bool // gateways know nothing of pins and avoided pods, and name nobody
	ctx      context.Context
	stop     context.CancelFunc
	work     sync.WaitGroup

	mu        sync.Mutex
	rng       *rand.Rand
	out       map[mesh.EndpointID]bool
	listeners map[string]net.Listener
	lines     map[string][]*simnet.Conn // by where they lead
	got       map[mesh.EndpointID]int   // connections
	handshake int                       // of sessions with pods
}

const distantHost = "far.default"

func newDistant(pods, gateways int, delay time.Duration) *distant {
	w := &distant{delay: delay, net: simnet.Network{Options: simnet.Options{Delay: delay}}, rng: rand.New(rand.NewPCG(1, uint64(pods))),
		out: map[mesh.EndpointID]bool{}, listeners: map[string]net.Listener{}, lines: map[string][]*simnet.Conn{}, got: map[mesh.EndpointID]int{}}
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
	w.discover()
	for _, g := range w.gateways {
		w.listen(g.Address.String())
	}
	return w
}

// discover has the client know whom there is, without those that are out.
func (w *distant) discover() {
	client := &mesh.Workload{UID: torturedUID, Name: "client", Namespace: "default", Network: "east", Node: "east-1", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Capacity: 1, Identity: torturedID("client")}
	client.Endpoint = mesh.EndpointIDOf("east", client.UID)
	parts := mesh.Parts{Workloads: []*mesh.Workload{client}, Gateways: w.gateways, Members: map[string][]string{},
		Services: []*mesh.Service{{Name: "far", Namespace: "default", Hostname: distantHost, Scope: mesh.ScopeGlobal, Takeover: true, Ports: []mesh.Port{{Service: 80, Target: 8080}}}}}
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
}

func (w *distant) dial(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, os.ErrDeadlineExceeded)
	defer cancel()
	c, err := w.net.Dial(ctx, addr.String())
	if err == nil {
		w.mu.Lock()
		w.lines[addr.String()] = append(w.lines[addr.String()], c)
		w.mu.Unlock()
	}
	return c, err
}

// listen has a gateway answer at addr.
func (w *distant) listen(addr string) {
	l, err := w.net.Listen(addr)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	w.listeners[addr] = l
	w.mu.Unlock()
	w.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() {
				t, err := hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(torturedID("gateway"), nil, "h2"))
				if err == nil {
					hbone.NewServer(t, hbone.DefaultConfig(), w.forward).Serve(w.ctx)
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

// forward is a gateway's part: the pod is beside it.
func (w *distant) forward(ctx context.Context, in *hbone.Incoming) {
	pin, avoid := mesh.EndpointID(header.ParseEndpoint(in.Header.Get(header.NamePin))), header.ParseAvoid(in.Header.Get(header.NameAvoid))
	if w.silent {
		pin, avoid = 0, nil
	}
	w.mu.Lock()
	var pod *mesh.Workload
	if at := slices.IndexFunc(w.pods, func(p *mesh.Workload) bool { return p.Endpoint == pin && !w.out[pin] }); at >= 0 {
		pod = w.pods[at]
	}
	for tries := 0; pod == nil && pin == 0; tries++ {
		if p := w.pods[w.rng.IntN(len(w.pods))]; !w.out[p.Endpoint] && (tries > 50*len(w.pods) || !slices.Contains(avoid, uint64(p.Endpoint))) {
			pod = p
		}
	}
	w.mu.Unlock()
	if pod == nil {
		in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonPinnedGone)})
		return
	}
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
	t, err := hbone.ServerTLS(w.ctx, conn, w.client.ids.ServerTLS(pod.Identity, nil, "h2"))
	if err != nil {
		return
	}
	hbone.NewServer(t, hbone.DefaultConfig(), func(ctx context.Context, in *hbone.Incoming) {
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

// connect is one connection of the client's application; it returns when the first byte
// came back, in round trips.
func (w *distant) connect(id int, lasts time.Duration) (trips float64, err error) {
	app, other := simnet.PairOf(simnet.Options{}, fmt.Sprintf("10.0.0.1:%d", 10000+id%50000), "10.0.0.1:20000")
	defer app.Close()
	w.work.Go(func() {
		if rest := w.client.carry(w.client.data, other, torturedUID, route.Flow{Host: distantHost, Port: 80}, nil, nil, nil); rest != nil {
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
	w.work.Wait()
	synctest.Wait()
}
