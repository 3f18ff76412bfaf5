package nodeproxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/internal/simnet"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/route"
)

// tortured is a small mesh in memory and in virtual time: a client and near pods
// on the network east, far pods behind a gateway on the network west. The node
// proxies are production's from the application's socket on; the gateway is only
// what one does with an accepted tunnel.
type tortured struct {
	o      options
	net    simnet.Network
	client *Proxy
	server *Proxy // of all pods
	group  map[link]*hbone.Group
	closed []net.Listener
	work   sync.WaitGroup
	ctx    context.Context
	stop   context.CancelFunc

	mu       sync.Mutex
	conns    map[int]*torturedConn
	lines    map[link][]*simnet.Conn // client ends of what is open between proxies
	sessions []*torturedSession
	faults   []torturedFault
	held     map[link]time.Time      // until when it holds something back
	places   map[netip.AddrPort]step // how applications accept, with Places
	draws    *rand.Rand              // of replicas
}

type torturedSession struct {
	s      *hbone.Session
	link   link
	server bool
}

// torturedFault is a time in which connections over a link may break.
type torturedFault struct {
	link  link
	what  string
	until time.Time
}

// torturedConn is one connection of the client's application and what became of it.
type torturedConn struct {
	id      int
	far     bool
	accept  step           // how the far application accepts
	first   netip.AddrPort // the one that was asked first
	how     step           // how that one accepted
	placed  bool           // with Places
	sure    bool           // likewise: it is answered, as one of the pods accepts and the budget is ample
	script  script
	client  *end
	servers []*end
	dials   int    // of pods' node proxies to its application, under way
	exposed string // why it may break without an application's doing
}

const torturedUID = "east/default/client"

// torturedSVIDs issues each identity once: certificates are valid on synctest's
// clock, which starts in 2000 in each bubble.
var torturedSVIDs = struct {
	sync.Mutex
	ca    *identity.CA
	svids map[spiffeid.ID]*identity.SVID
}{svids: map[spiffeid.ID]*identity.SVID{}}

type torturedSource struct{}

func (torturedSource) Fetch(_ context.Context, id spiffeid.ID) (*identity.SVID, error) {
	c := &torturedSVIDs
	c.Lock()
	defer c.Unlock()
	const lifetime = 24 * 365 * time.Hour
	if c.ca == nil {
		dir, err := os.MkdirTemp("", "torture")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		if c.ca, err = identity.InitCA(dir, spiffeid.RequireTrustDomainFromString("cluster.local"), identity.WithCALifetime(2*lifetime)); err != nil {
			return nil, err
		}
	}
	if c.svids[id] == nil {
		svid, err := c.ca.Issue(id, lifetime)
		if err != nil {
			return nil, err
		}
		c.svids[id] = svid
	}
	return c.svids[id], nil
}

func torturedID(name string) spiffeid.ID {
	return spiffeid.RequireFromString("spiffe://cluster.local/ns/default/sa/" + name)
}

func torturedParts(pods, replicas int) mesh.Parts {
	parts := mesh.Parts{Members: map[string][]string{}}
	pod := func(network, name, addr string) string {
		w := &mesh.Workload{
			UID: network + "/default/" + name, Name: name, Namespace: "default", Network: network, Cluster: network, Node: network + "-1",
			Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Capacity: 1, Identity: torturedID(name),
		}
		w.Endpoint = mesh.EndpointIDOf(network, w.UID)
		parts.Workloads = append(parts.Workloads, w)
		return w.UID
	}
	pod("east", "client", "10.0.0.1")
	for _, s := range []struct{ name, network, prefix string }{{"near", "east", "10.0.1."}, {"far", "west", "10.0.2."}} {
		svc := &mesh.Service{Name: s.name, Namespace: "default", Hostname: s.name + ".default", Scope: mesh.ScopeGlobal, Takeover: true, Distribution: mesh.PreferNetwork,
			Ports: []mesh.Port{{Name: "tcp", Service: 80, Target: 8080}}}
		for i := range pods {
			name := fmt.Sprintf("%s-%d", s.name, i+1)
			parts.Members[svc.Hostname] = append(parts.Members[svc.Hostname], pod(s.network, name, fmt.Sprint(s.prefix, i+1)))
		}
		parts.Services = append(parts.Services, svc)
	}
	for i := range max(replicas, 1) {
		parts.Gateways = append(parts.Gateways, &mesh.Gateway{Name: fmt.Sprint("gw-", i+1), Network: "west", Address: netip.MustParseAddrPort("10.0.3.1:15008"),
			Identity: torturedID("gateway"), Sources: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
	}
	return parts
}

func newTortured(o options, log zerolog.Logger) *tortured {
	w := &tortured{o: o, net: simnet.Network{Options: simnet.Options{Delay: o.Delay, Buffer: o.LinkBuffer}}, group: map[link]*hbone.Group{},
		conns: map[int]*torturedConn{}, lines: map[link][]*simnet.Conn{}, held: map[link]time.Time{}, draws: rand.New(rand.NewPCG(o.Seed, 4))}
	if o.Places {
		w.places = map[netip.AddrPort]step{}
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	for _, l := range allLinks {
		w.group[l] = &hbone.Group{}
	}
	snap := mesh.NewSnapshot(1, torturedParts(o.Pods, o.Replicas))
	proxy := func(network string) *Proxy {
		cfg := DefaultConfig()
		cfg.Node, cfg.Network = network+"-1", network
		cfg.Federation.Health = false
		if !o.Places {
			cfg.OutlierDetection.Mode = health.ModeOff
		}
		if !o.Kept {
			cfg.OutlierDetection.Scope = ScopeNone
		}
		cfg.Retry.Attempts, cfg.Retry.Early = o.Attempts, o.Early
		if o.Hedges > 0 {
			cfg.Retry.BudgetBurst, cfg.Retry.BudgetRatio = int(o.Hedges*retrybudget.AfterSlow), 0.5
		}
		if o.Places {
			cfg.Retry.BudgetRatio = 0
		}
		p := newProxy(cfg, log)
		p.store.Swap(snap)
		p.ids = identity.NewManager(torturedSource{}, zerolog.Nop())
		p.session.FirstWindow, p.session.StreamWindow, p.session.ConnWindow = o.FirstWindow, o.StreamWindow, o.ConnWindow
		p.dialHop = w.dial
		p.witness = newWitness(p.data, cfg, p.declared, w.dialApp, p.changed, log)
		p.started = func(s *hbone.Session) {
			l := linkPods
			if s.Base() != s {
				l = linkFar
			} else if s.Peer().ID == torturedID("gateway") {
				l = linkGateway
			}
			w.track(s, l, false)
		}
		return p
	}
	w.client, w.server = proxy("east"), proxy("west")
	for _, pod := range snap.Workloads()[1:] {
		w.listen(netip.AddrPortFrom(pod.Addresses[0], mesh.HBONEPort), pod.Identity, func() []string { return []string{"h2"} }, w.servePod(pod))
	}
	gw := snap.Gateways("west")[0]
	w.listen(gw.Address, gw.Identity, w.replica, w.serveGateway(snap))
	return w
}

// replica is what the gateway says who answers one connect.
func (w *tortured) replica() []string {
	if w.o.Replicas < 2 {
		return []string{"h2"}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return hbone.ServerProtocols(fmt.Sprint("west/gw-", w.draws.IntN(w.o.Replicas)+1))
}

func (w *tortured) track(s *hbone.Session, l link, server bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions = append(w.sessions, &torturedSession{s, l, server})
}

func (w *tortured) groupOf(l link) *hbone.Group {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.group[l]
}

// dial opens a connection of a link, which the address tells.
func (w *tortured) dial(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, os.ErrDeadlineExceeded)
	defer cancel()
	l := map[byte]link{1: linkPods, 2: linkFar, 3: linkGateway}[addr.Addr().As4()[2]]
	for w.isHeld(l) { // SYN or its answer is held back too
		if !pause(ctx, 10*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
	c, err := w.net.Dial(ctx, addr.String())
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines[l] = append(w.lines[l], c)
	return c, nil
}

func (w *tortured) isHeld(l link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.held[l])
}

// listen serves sessions for id at addr until the world stops.
func (w *tortured) listen(addr netip.AddrPort, id spiffeid.ID, protocols func() []string, serve func(net.Listener, *hbone.TLSTransport)) {
	listener, err := w.net.Listen(addr.String())
	if err != nil {
		panic(err)
	}
	w.closed = append(w.closed, listener)
	w.work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			w.work.Go(func() {
				ctx, cancel := context.WithTimeout(w.ctx, w.server.cfg.Timeouts.Handshake)
				t, err := hbone.ServerTLS(ctx, conn, w.server.ids.ServerTLS(id, nil, protocols()...))
				cancel()
				if err == nil {
					serve(listener, t)
				}
			})
		}
	})
}

// askedBy is the key of a context: which connection a CONNECT belongs to.
type askedBy struct{}

// servePod serves a pod's sessions as its node proxy does.
func (w *tortured) servePod(pod *mesh.Workload) func(net.Listener, *hbone.TLSTransport) {
	l := linkPods
	if pod.Network == "west" {
		l = linkFar
	}
	return func(listener net.Listener, t *hbone.TLSTransport) {
		in := newInbound(w.server, pod.UID, listener)
		cfg := w.server.session
		cfg.MaxStreams, cfg.SettingsTimeout = w.o.PodStreams, w.server.cfg.Timeouts.Handshake
		client := admission.Client{Identity: t.Peer().ID.String()}
		admitted, err := w.server.clients.Session(client, time.Now())
		if err != nil {
			panic(err) // the schedules stay far below every limit
		}
		defer admitted.Release()
		cfg.Screen = func(req *hbone.Incoming) hbone.Handler {
			connect := in.screen(req, client, admitted)
			if connect == nil {
				return nil
			}
			return func(ctx context.Context, req *hbone.Incoming) {
				connect(context.WithValue(ctx, askedBy{}, req.Header.Get(header.NameForwarded)), req)
			}
		}
		s := hbone.NewServer(t, cfg, nil)
		w.track(s, l, true)
		w.groupOf(l).Serve(w.ctx, s)
	}
}

// serveGateway passes tunnels on to far pods.
func (w *tortured) serveGateway(snap *mesh.Snapshot) func(net.Listener, *hbone.TLSTransport) {
	far := snap.Members(snap.Service("far.default"), "west")
	next := 0
	choose := func(pin mesh.EndpointID, avoid []uint64) *mesh.Workload {
		if pod := snap.WorkloadByEndpoint(pin); pod != nil {
			return pod
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for range far {
			if next++; !slices.Contains(avoid, uint64(far[next%len(far)].Endpoint)) {
				break
			}
		}
		return far[next%len(far)]
	}
	return func(_ net.Listener, t *hbone.TLSTransport) {
		cfg := w.server.session
		cfg.MaxStreams, cfg.CancelEnds = w.o.GatewayStreams, true
		s := hbone.NewServer(t, cfg, func(ctx context.Context, in *hbone.Incoming) {
			pod := choose(mesh.EndpointID(header.ParseEndpoint(in.Header.Get(header.NamePin))), header.ParseAvoid(in.Header.Get(header.NameAvoid)))
			conn, err := w.dial(ctx, netip.AddrPortFrom(pod.Addresses[0], mesh.HBONEPort), w.server.cfg.Timeouts.Dial)
			if err != nil {
				in.Refuse(503, hbone.Header{header.NameReason: string(header.ReasonUnreachable)})
				return
			}
			st, err := in.Accept(hbone.Header{header.NameEndpoint: pod.Endpoint.String()})
			if err != nil {
				conn.Close()
				return
			}
			hbone.Relay(ctx, st, conn)
		})
		w.track(s, linkGateway, true)
		w.groupOf(linkGateway).Serve(w.ctx, s)
	}
}

// dialApp is a pod's node proxy that connects to its application.
func (w *tortured) dialApp(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	forwarded, _ := ctx.Value(askedBy{}).(string)
	var c *torturedConn
	w.mu.Lock()
	for _, x := range w.conns {
		if forwarded != "" && forwarded == header.Forwarded(x.address(), x.host()) {
			c = x
		}
	}
	w.mu.Unlock()
	if c == nil && forwarded == "" && w.places != nil {
		return w.askApp(ctx, addr, timeout)
	}
	if c == nil {
		return nil, fmt.Errorf("dial %v: nobody has asked for it (%q)", addr, forwarded)
	}
	w.mu.Lock()
	c.dials++
	if w.places != nil {
		c.accept = w.place(addr)
	}
	first := c.first == (netip.AddrPort{})
	if first {
		c.first = addr
	}
	how := c.acceptsAt(addr)
	if first {
		c.how = how
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		c.dials--
		w.mu.Unlock()
	}()
	if err := how.connect(ctx, timeout); err != nil {
		return nil, err
	}
	a, b := simnet.PairOf(simnet.Options{Buffer: w.o.AppBuffer}, addr.Addr().String()+":40000", addr.String())
	w.mu.Lock()
	defer w.mu.Unlock()
	name := fmt.Sprintf("server of c%d", c.id)
	if n := len(c.servers); n > 0 {
		name += fmt.Sprintf(" (%d)", n+1)
	}
	c.servers = append(c.servers, startEnd(name, b, patternOf(c.id, server), patternOf(c.id, client), c.script))
	return a, nil
}

// connect takes as long as an application does that accepts like s.
func (s step) connect(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, os.ErrDeadlineExceeded)
	defer cancel()
	wait := time.Duration(s.n) * time.Millisecond
	if s.op == opHang || s.op == opSulks {
		wait = time.Hour
	}
	if !pause(ctx, wait) {
		return context.Cause(ctx)
	}
	if s.op == opRefuse || s.op == opSpurns {
		return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	return nil
}

// askApp is the witness of a pod's node proxy that asks its application.
func (w *tortured) askApp(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	w.mu.Lock()
	how := w.place(addr)
	w.mu.Unlock()
	if err := how.connect(ctx, timeout); err != nil {
		return nil, err
	}
	a, b := simnet.PairOf(simnet.Options{}, addr.Addr().String()+":40000", addr.String())
	b.Close()
	return a, nil
}

// acceptsAt is how the application at addr accepts.
func (c *torturedConn) acceptsAt(addr netip.AddrPort) step {
	how := c.accept
	switch {
	case how.op == opLate && addr != c.first:
		how.n = 0
	case how.op == opOnly && addr != c.first:
		how.op, how.n = opRefuse, 0
	case how.op == opMixed:
		return mixed(uint64(how.n)<<32 | uint64(c.id)<<8 | uint64(addr.Addr().As4()[3]))
	}
	return how
}

// address is what the client's application connects from.
func (c *torturedConn) address() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(30000+c.id))
}

func (c *torturedConn) host() string {
	if c.far {
		return "far.default"
	}
	return "near.default"
}

// open has the client's application connect.
func (w *tortured) open(s step) {
	if w.conns[s.conn] != nil {
		return
	}
	c := &torturedConn{id: s.conn, far: s.link != linkPods, accept: s, placed: w.o.Places, sure: w.o.Places && w.o.Hedges == 0 && w.o.Attempts > w.o.Pods}
	a, b := simnet.PairOf(simnet.Options{Buffer: w.o.AppBuffer}, c.address().String(), "10.0.0.1:20000")
	w.mu.Lock()
	w.conns[c.id] = c
	now := time.Now()
	for _, f := range w.faults {
		if now.Before(f.until) && c.over(f.link) {
			c.exposed = "opened after " + f.what
		}
	}
	w.mu.Unlock()
	c.client = startEnd(fmt.Sprintf("client of c%d", c.id), a, patternOf(c.id, client), patternOf(c.id, server), script{})
	w.work.Go(func() {
		flow := route.Flow{Host: c.host(), Port: 80}
		if rest := w.client.carry(w.client.data, b, torturedUID, flow, nil, nil, nil); rest != nil {
			w.work.Go(func() { rest(w.client.data) })
		}
	})
}

func (c *torturedConn) over(l link) bool { return c.far == (l != linkPods) }

func (c *torturedConn) ends() []*end { return append([]*end{c.client}, c.servers...) }

func (c *torturedConn) done() bool {
	for _, e := range c.ends() {
		if !e.done() {
			return false
		}
	}
	return c.dials == 0
}

// tell has the applications of one side do something, also the server's that are
// yet to accept.
func (w *tortured) tell(c *torturedConn, s side, change func(*script)) {
	if s == client {
		c.client.tell(change)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&c.script)
	for _, e := range c.servers {
		e.tell(change)
	}
}

// place is how the application at addr accepts, with Places; mu is held.
func (w *tortured) place(addr netip.AddrPort) step {
	if how, ok := w.places[addr]; ok {
		return how
	}
	return step{op: opServes}
}

// podAddress is where the application of s's pod is.
func podAddress(s step) netip.AddrPort {
	prefix := "10.0.1."
	if s.link != linkPods {
		prefix = "10.0.2."
	}
	return netip.MustParseAddrPort(fmt.Sprint(prefix, s.conn+1, ":8080"))
}

// do takes one step.
func (w *tortured) do(s step) {
	switch {
	case s.op.opens():
		w.open(s)
		return
	case s.op.onPod():
		w.mu.Lock()
		defer w.mu.Unlock()
		w.places[podAddress(s)] = s
		return
	case s.op.onLink():
		w.disturb(s)
		return
	}
	c := w.conns[s.conn]
	if c == nil {
		return
	}
	w.tell(c, s.side, func(x *script) {
		switch s.op {
		case opSend:
			if !x.finish {
				x.want += s.n
			}
		case opEnd:
			x.finish = true
		case opPart:
			x.finish, x.part = true, true
		case opReset, opLeave:
			if x.quit == "" {
				x.quit = s.op
			}
		case opStop:
			x.pace, x.paused = -1, true
		case opSlow:
			x.pace = s.n
		case opRead:
			x.pace = 0
		}
	})
}

// Times after which a fault no longer excuses anything. A line that held back for
// no longer than shortHold, and not just before, must break nothing: the shortest
// timeout is 2 s. After a longer one both ends of a session find out within a
// ping and its timeout, 30 s, that it is dead. A session that was closed may have
// left bytes unread, and its peer sees a reset and no GOAWAY.
const (
	shortHold  = time.Second
	afterFault = 40 * time.Second
	afterClose = time.Second
)

// disturb breaks a link or what serves at its end.
func (w *tortured) disturb(s step) {
	switch d := time.Duration(s.n) * time.Millisecond; s.op {
	case opCut:
		w.expose(s, afterClose) // the client hears of it through the gateway
		w.each(s.link, (*simnet.Conn).Cut)
	case opKill:
		w.expose(s, afterClose)
		w.each(s.link, (*simnet.Conn).Finish)
	case opUp, opDown, opFreeze:
		w.hold(s, d)
	case opDrain:
		w.mu.Lock()
		old := w.group[s.link]
		w.group[s.link] = &hbone.Group{}
		w.mu.Unlock()
		w.work.Go(func() { old.Drain(w.ctx) })
	case opClose:
		w.expose(s, afterClose)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, x := range w.sessions {
			if x.link == s.link && x.server {
				go x.s.Close(nil)
			}
		}
	}
}

func (w *tortured) each(l link, f func(*simnet.Conn)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.lines[l] {
		f(c)
	}
}

func (w *tortured) hold(s step, d time.Duration) {
	now := time.Now()
	w.mu.Lock()
	last := w.held[s.link]
	w.held[s.link] = now.Add(d)
	if last.After(now.Add(d)) {
		w.held[s.link] = last
	}
	w.mu.Unlock()
	if d > shortHold || now.Sub(last) < 5*time.Second && !last.IsZero() {
		w.expose(s, d+afterFault)
	}
	w.mu.Lock()
	held := append([]*simnet.Conn(nil), w.lines[s.link]...)
	w.mu.Unlock()
	for _, c := range held {
		if s.op != opDown {
			c.Stall()
		}
		if s.op != opUp {
			c.StallIn()
		}
	}
	w.work.Go(func() {
		pause(w.ctx, d)
		for _, c := range held {
			if s.op != opDown {
				c.Resume()
			}
			if s.op != opUp {
				c.ResumeIn()
			}
		}
	})
}

// expose notes that connections over a link may break, those that are there and
// those that come within d.
func (w *tortured) expose(s step, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, torturedFault{s.link, s.String(), time.Now().Add(d)})
	for _, c := range w.conns {
		if c.over(s.link) && c.exposed == "" && !c.done() {
			c.exposed = s.String()
		}
	}
}

// run takes the steps of a schedule and returns what was wrong, nil if nothing.
func (w *tortured) run(steps []step) (wrong []error) {
	blame := func(err error) {
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	for i, s := range steps {
		time.Sleep(s.after)
		w.do(s)
		synctest.Wait()
		if err := w.check((*hbone.Session).Check); err != nil {
			blame(fmt.Errorf("after step %d (%v): %w", i+1, s, err))
			return wrong
		}
	}
	w.settle(w.ordered())
	w.recover()
	w.settle(w.ordered()) // and what was held back until now
	for _, c := range w.ordered() {
		blame(c.judge())
	}
	if len(wrong) > 0 {
		return wrong
	}
	blame(w.quiet())
	if w.o.Places {
		blame(w.unmoved(steps))
		blame(w.spent())
		clear(w.places)
	}
	for i, l := range []link{linkPods, linkGateway} {
		blame(w.next(1000+i, l))
	}
	if len(wrong) > 0 {
		return wrong
	}
	w.client.pool.Retire(func(k pool.Key) bool { return k.Through != "" })
	blame(w.quiet())
	blame(w.unbooked())
	blame(w.affordable())
	if onlyApplications(steps) {
		blame(w.unrepeated())
	}
	return wrong
}

func (w *tortured) ordered() (out []*torturedConn) {
	for id := range 2000 {
		if c := w.conns[id]; c != nil {
			out = append(out, c)
		}
	}
	return out
}

// endingTime is how long everything may take to end when all applications read on
// and say no more: the retries of a connect, a ping and its timeout, and what an
// application that stopped reading may hold.
const endingTime = 2 * time.Minute

// settle has the applications send the rest and read the rest, and waits.
func (w *tortured) settle(conns []*torturedConn) {
	for _, c := range conns {
		for _, s := range []side{client, server} {
			w.tell(c, s, func(x *script) { x.finish, x.pace = true, 0 })
		}
	}
	for limit := time.Now().Add(endingTime); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		all := true
		w.mu.Lock()
		for _, c := range conns {
			all = all && c.done()
		}
		w.mu.Unlock()
		if all {
			break
		}
	}
	synctest.Wait()
}

// recover waits until no fault excuses anything.
func (w *tortured) recover() {
	for _, f := range w.faults {
		time.Sleep(time.Until(f.until))
	}
}

// check applies an invariant to every session.
func (w *tortured) check(holds func(*hbone.Session) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, x := range w.sessions {
		if err := holds(x.s); err != nil {
			return fmt.Errorf("session %d (%s): %w", i, x.link, err)
		}
	}
	return nil
}

// quiet waits until every session is as it was before its first stream. Kept
// sessions are streams of those that carry them.
func (w *tortured) quiet() (err error) {
	for range 60 {
		synctest.Wait()
		carriers := map[*hbone.Session]bool{}
		w.mu.Lock()
		for _, x := range w.sessions {
			if x.link == linkFar && x.s.Err() == nil {
				carriers[x.s.Base()] = true
			}
		}
		carries := len(carriers) > 0
		w.mu.Unlock()
		err = w.check(func(s *hbone.Session) error {
			if carries && w.linkOf(s) == linkGateway {
				return s.Check()
			}
			return s.CheckIdle()
		})
		if err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}

func (w *tortured) linkOf(s *hbone.Session) link {
	for _, x := range w.sessions {
		if x.s == s {
			return x.link
		}
	}
	return ""
}

// next is a connection after all that: it must get more through, in both
// directions, than windows hold that nobody refills.
func (w *tortured) next(id int, l link) error {
	w.open(step{op: opOpen, conn: id, link: l})
	c := w.conns[id]
	for _, s := range []side{client, server} {
		w.tell(c, s, func(x *script) { x.want = w.o.ConnWindow + w.o.StreamWindow + 1 })
	}
	w.settle([]*torturedConn{c})
	if err := c.judge(); err != nil {
		return fmt.Errorf("the next connection: %w", err)
	}
	return nil
}

// unbooked waits until no connection is left in the books of the node proxy; that
// of a client that has left may still be tried elsewhere.
func (w *tortured) unbooked() error {
	for range 60 {
		if w.client.view.Load() == (picker.Load{}) {
			return nil
		}
		time.Sleep(time.Second)
	}
	return fmt.Errorf("the client's node proxy still counts %+v", w.client.view.Load())
}

// affordable states that no more attempts were withdrawn than the retry budget allows for.
func (w *tortured) affordable() error {
	asked := w.hedges("withdrawn", "accepted", "refused", "unanswered")
	b := w.client.cfg.Retry
	if most := 2*float64(b.BudgetBurst) + b.BudgetRatio*float64(len(w.conns)); asked*retrybudget.AfterSlow > most { // near and far have one each
		return fmt.Errorf("%v attempts were to be withdrawn, for which the budget has %v", asked, most)
	}
	return nil
}

// hedges is how many attempts came to one of results.
func (w *tortured) hedges(results ...string) (n float64) {
	for _, result := range results {
		n += testutil.ToFloat64(w.client.metrics.hedges.WithLabelValues(result))
	}
	return n
}

// onlyApplications reports that nothing but the applications' own doing happens in steps, and
// that all of them accept.
func onlyApplications(steps []step) bool {
	return !slices.ContainsFunc(steps, func(s step) bool {
		return s.op.onLink() || s.op == opSpurns || s.op == opSulks || s.op == opRefuse || s.op == opHang || s.op == opOnly || s.op == opMixed
	})
}

// unrepeated states that no attempt of a connect has failed: where nothing is
// wrong, nobody is blamed, however many connections come at once.
func (w *tortured) unrepeated() error {
	families, err := w.client.registry.Gather()
	if err != nil {
		return err
	}
	for _, f := range families {
		if f.GetName() != "isthmus_connect_retries_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if reason := m.GetLabel()[0].GetValue(); reason != reasonTunnel { // an application that resets at once
				return fmt.Errorf("%v connects were repeated (%v), though nothing was wrong", m.GetCounter().GetValue(), reason)
			}
		}
	}
	return nil
}

// end stops the world. What does not end then keeps the bubble from ending.
func (w *tortured) end() {
	for _, c := range w.ordered() {
		for _, e := range c.ends() {
			e.tell(func(x *script) { x.quit = opReset })
		}
	}
	w.client.kept.Close()
	w.client.pool.Close()
	w.stop()
	w.client.stop()
	w.server.stop()
	for _, l := range w.closed {
		l.Close()
	}
	for _, l := range allLinks {
		w.each(l, (*simnet.Conn).Cut)
	}
	w.client.gatewayProbes.Wait()
	w.client.podProbes.Wait()
	w.work.Wait()
}

// runSchedule runs s in a bubble of its own.
func runSchedule(t *testing.T, s schedule, log zerolog.Logger) (wrong []error) {
	defer func() {
		if r := recover(); r != nil {
			wrong = append(wrong, fmt.Errorf("not everything has ended: %v", r))
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := newTortured(s.world, log)
		wrong = w.run(s.steps)
		w.end()
	})
	return wrong
}
