package meshtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// Process is one gateway or node proxy that runs, or has run.
type Process struct {
	Name  string
	Log   *Log
	Admin netip.AddrPort
	// Metrics are those of the process.
	Metrics *prometheus.Registry

	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run, once ended is closed
}

type runner interface {
	Run(context.Context) error
	Registry() *prometheus.Registry
}

func (m *Mesh) run(name string, admin netip.AddrPort, log *Log, r runner) *Process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Process{Name: name, Log: log, Admin: admin, Metrics: r.Registry(), cancel: cancel, ended: make(chan struct{})}
	m.processes = append(m.processes, p)
	go func() {
		defer close(p.ended)
		p.err = r.Run(ctx)
	}()
	return p
}

// logger has the fields that every line of a process has; see internal/process.
func (m *Mesh) logger(l *Log, component, instance string) zerolog.Logger {
	if m.Quiet {
		return zerolog.Nop()
	}
	return zerolog.New(l).Level(zerolog.DebugLevel).With().Timestamp().Str("component", component).Str("instance", instance).Logger()
}

// GatewayConfig is the configuration that StartGateway begins with.
func (m *Mesh) GatewayConfig(network, name string) gateway.Config {
	c := gateway.DefaultConfig()
	c.Name, c.Network, c.TrustDomain = name, network, m.Config.TrustDomain
	c.Discovery.File = m.File()
	c.Identity = identity.Config{Source: "ca", Dir: m.caDir(), TTL: time.Hour}
	c.Admin.Address = netip.AddrPortFrom(m.Addr(), 15000)
	if own := m.OwnAddress(network, name); own != m.GatewayAt(network, name) {
		c.Listen = own
	}
	ring := m.Keys(network)
	c.Federation.Keys, c.Federation.Networks = ring.Dir, ring.List
	c.Timeouts.Drain = 5 * time.Second
	if m.EachGateway != nil {
		m.EachGateway(&c)
	}
	return c
}

// StartGateway runs a declared gateway; edits are applied to its configuration.
func (m *Mesh) StartGateway(network, name string, edits ...func(*gateway.Config)) *Process {
	m.t.Helper()
	c := m.GatewayConfig(network, name)
	for _, e := range edits {
		e(&c)
	}
	log := &Log{}
	g, err := gateway.New(c, m.logger(log, "gateway", network+"/"+name))
	if err != nil {
		m.t.Fatalf("gateway %s/%s: %v", network, name, err)
	}
	return m.run("gateway "+network+"/"+name, c.Admin.Address, log, g)
}

// NodeConfig is the configuration that StartNode begins with: a SOCKS listener
// for every pod of the node, and the declared static ones.
func (m *Mesh) NodeConfig(network, node string) nodeproxy.Config {
	c := nodeproxy.DefaultConfig()
	c.Node, c.Network, c.TrustDomain = node, network, m.Config.TrustDomain
	c.Discovery.File = m.File()
	c.Identity = identity.Config{Source: "ca", Dir: m.caDir(), TTL: time.Hour}
	c.Admin.Address = netip.AddrPortFrom(m.Addr(), 15000)
	c.Timeouts.Drain = 5 * time.Second
	c.Outbound = slices.Clone(m.outbounds[node])
	for _, p := range m.pods {
		if p.Network == network && p.Node == node {
			c.Socks = append(c.Socks, nodeproxy.Socks{Workload: p.UID, Listen: p.Socks})
		}
	}
	if m.EachNode != nil {
		m.EachNode(&c)
	}
	return c
}

// StartNode runs the node proxy of a node; edits are applied to its
// configuration.
func (m *Mesh) StartNode(network, node string, edits ...func(*nodeproxy.Config)) *Process {
	m.t.Helper()
	c := m.NodeConfig(network, node)
	for _, e := range edits {
		e(&c)
	}
	log := &Log{}
	p, err := nodeproxy.New(c, m.logger(log, "nodeproxy", node))
	if err != nil {
		m.t.Fatalf("node proxy %s: %v", node, err)
	}
	return m.run("node proxy "+node, c.Admin.Address, log, p)
}

// Start writes the discovery file, runs every declared gateway and the node
// proxy of every node that has pods, and waits until all are ready.
func (m *Mesh) Start() {
	m.t.Helper()
	m.Write()
	var started []*Process
	for _, g := range m.Config.Gateways {
		if m.Process("gateway "+g.Network+"/"+g.Name) == nil {
			started = append(started, m.StartGateway(g.Network, g.Name))
		}
	}
	for _, p := range m.pods {
		if p.Node != "" && m.Process("node proxy "+p.Node) == nil {
			started = append(started, m.StartNode(p.Network, p.Node))
		}
	}
	for _, p := range started {
		p.AwaitReady(m.t)
	}
}

// Process returns the last process of that name ("gateway west/gw-1", "node
// proxy west-1") that was started, or nil.
func (m *Mesh) Process(name string) *Process {
	for _, p := range slices.Backward(m.processes) {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// AwaitReady waits until the process says on its admin port that it is ready.
func (p *Process) AwaitReady(t testing.TB) {
	t.Helper()
	Eventually(t, p.Name+" ready", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("%s ended: %v", p.Name, p.err)
		default:
		}
		status, _ := p.get("/healthz/ready")
		return status == http.StatusOK
	})
}

// Cancel tells the process to stop, as SIGTERM does, and returns at once.
func (p *Process) Cancel() { p.cancel() }

// Stop tells the process to stop and waits until it has.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.cancel()
	p.wait(t)
}

// Ended is closed when Run has returned.
func (p *Process) Ended() <-chan struct{} { return p.ended }

func (p *Process) wait(t testing.TB) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(Patience):
		t.Errorf("%s does not stop; its log:\n%s", p.Name, p.Log.tail(20))
		return
	}
	if p.err != nil {
		t.Errorf("%s: Run: %v", p.Name, p.err)
	}
}

func (p *Process) get(path string) (status int, body []byte) {
	c := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := c.Get("http://" + p.Admin.String() + path)
	if err != nil {
		return 0, nil
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	if err != nil {
		return 0, nil
	}
	return r.StatusCode, body
}

// Get asks the admin port.
func (p *Process) Get(t testing.TB, path string) (status int, body string) {
	t.Helper()
	status, b := p.get(path)
	return status, string(b)
}

// State decodes the admin port's /state.
func (p *Process) State(t testing.TB) map[string]any {
	t.Helper()
	status, body := p.get("/state")
	var out map[string]any
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatalf("%s: /state answers %d %q: %v", p.Name, status, body, err)
	}
	return out
}

// Rows returns one list of /state, for example Rows(t, "pods").
func (p *Process) Rows(t testing.TB, list string) []Line {
	t.Helper()
	rows, ok := p.State(t)[list].([]any)
	if !ok {
		t.Fatalf("%s: /state has no list %q", p.Name, list)
	}
	out := make([]Line, len(rows))
	for i, r := range rows {
		out[i] = Line(r.(map[string]any))
	}
	return out
}

// Row returns the first row of a list of /state that says all of pairs, or nil.
func (p *Process) Row(t testing.TB, list string, pairs ...any) Line {
	t.Helper()
	for _, r := range p.Rows(t, list) {
		if r.Has(pairs...) {
			return r
		}
	}
	return nil
}

// Metric returns the value of one sample of /metrics, written as there:
// name{label="value"}; 0 when there is none.
func (p *Process) Metric(t testing.TB, sample string) float64 {
	t.Helper()
	_, body := p.get("/metrics")
	var v float64
	for line := range lines(body) {
		if rest, ok := cutSample(line, sample); ok {
			fmt.Sscan(rest, &v)
		}
	}
	return v
}
