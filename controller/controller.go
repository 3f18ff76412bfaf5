package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/notices"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// Controller is one process's controller. Build it with New, then Run it once.
type Controller struct {
	cfg        Config
	log        zerolog.Logger
	ids        *identity.Manager
	links      *links.File // nil without federation.networks
	gateways   *gateways
	stream     *healthstream.Client
	exports    *exports
	client     *owned.Client
	imports    *owned.Imports
	declared   *owned.Exports
	namespaces *owned.Namespaces
	objects    *objects
	source     *kube.Source
	election   *owned.Election
	metrics    *Metrics
	registry   *prometheus.Registry
	authority  *authority // nil without ca.address
	admin      net.Listener
	operations net.Listener
	wake       chan struct{} // one slot: something else is known, for who leads
	wrong      chan struct{} // one slot: something else is wrong, for who leads

	mu       sync.Mutex
	problems []imports.Problem                   // of the last plan, while this process leads
	held     []answer.HeldWrite                  // writes that the API server refuses of it
	vips     *answer.VIPs                        // as of the last plan; nil: not known here
	failure  string                              // why the last plan could not be carried out
	told     map[notices.Object][]notices.Notice // what is wrong with processes and links, that is told
	attached attached                            // whether gateways are connected
	ledger   string                              // what of the ledger of addresses could not be read when it was last
}

// New is Open and Listen.
func New(cfg Config, log zerolog.Logger) (*Controller, error) {
	c, err := Open(cfg, log)
	if err == nil {
		err = c.Listen()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Open reads keys, certificates and the files of links. It opens no socket: controller --check
// ends after it, and what would keep the process from starting is an error here.
func Open(cfg Config, log zerolog.Logger) (*Controller, error) {
	c := &Controller{cfg: cfg, log: log, registry: admin.NewRegistry(), wake: make(chan struct{}, 1), wrong: make(chan struct{}, 1)}
	self, err := cfg.account(cfg.ServiceAccount, "serviceAccount", true)
	if err != nil {
		return nil, err
	}
	gateway, err := cfg.account(cfg.GatewayServiceAccount, "gatewayServiceAccount", false)
	if err != nil {
		return nil, err
	}
	if c.ids, err = cfg.Identity.Open(log); err != nil {
		return nil, err
	}
	if err := c.ids.CheckTrustDomain(cfg.TrustDomain); err != nil {
		return nil, err
	}
	c.registry.MustRegister(identity.NewMetrics(c.ids))
	if cfg.Federation.Networks != "" {
		if c.links, err = links.OpenOrWait(cfg.Federation.Networks, cfg.Network); err != nil {
			return nil, err
		}
	}
	for _, w := range c.CheckWarnings() {
		log.Warn().Msg(w)
	}
	c.gateways = newGateways(cfg.Gateways, cfg.Network, gateway, log)
	c.stream = healthstream.NewClient(healthstream.ClientConfig{
		Observe: true, Network: cfg.Network, Self: self, Identity: c.ids, Gateways: c.gateways.all, Known: c.links.Known(), Log: log, Metrics: peer.NewMetrics(c.registry),
	})
	c.exports = newExports(c.links, cfg.TrustDomain, c.stream)
	if c.client, err = owned.Open(cfg.Discovery.Kube, cfg.Namespace, log); err != nil {
		return nil, err
	}
	c.imports, c.declared, c.namespaces = c.client.Imports(), c.client.Exports(), c.client.Namespaces()
	c.objects = newObjects(cfg.Network, cfg.VIPs.ranges(), func() { c.nudge(); nudge(c.wrong) })
	if c.source, err = cfg.Discovery.Kube.Open(cfg.Network, c.objects, log); err != nil {
		return nil, err
	}
	c.registry.MustRegister(kube.NewCollector(c.source))
	c.election = c.client.Election(cfg.Lease.Name, cfg.Name, cfg.Lease.Duration)
	c.metrics = newMetrics(c.registry, c)
	if c.authority, err = c.openAuthority(); err != nil {
		return nil, err
	}
	return c, nil
}

// Check reports what the controller would wait for after its start: its certificate.
func (c *Controller) Check() error {
	self, err := c.cfg.account(c.cfg.ServiceAccount, "serviceAccount", true)
	if err != nil {
		return err
	}
	return c.ids.Check(self)
}

// CheckWarnings returns what keeps no process from starting: a file of links that does not
// exist yet.
func (c *Controller) CheckWarnings() []string {
	if !c.links.Unread() {
		return nil
	}
	return []string{fmt.Sprintf("federation.networks: %v: %s: create the file, or leave the key out if no network is linked", c.links.Failure(), c.withoutLinks())}
}

// withoutLinks returns what is in force while the file of links cannot be read.
func (c *Controller) withoutLinks() string {
	if c.links.Unread() {
		return "which networks are linked is not known, and what is imported stays as it is until the file is read"
	}
	return "what was read before is used"
}

// Listen binds every listener, or none.
func (c *Controller) Listen() (err error) {
	if err = c.authority.listen(c.cfg); err != nil {
		return err
	}
	if c.admin, err = admin.Listen(c.cfg.Admin); err != nil {
		c.authority.close()
		return err
	}
	if c.operations, err = admin.ListenOperations(c.cfg.Operations); err != nil {
		c.authority.close()
		c.admin.Close()
		return err
	}
	return nil
}

// Registry holds the metrics of this controller.
func (c *Controller) Registry() *prometheus.Registry { return c.registry }

// Run works until ctx ends, and returns when everything that it started has.
func (c *Controller) Run(ctx context.Context) error {
	if id, err := c.cfg.account(c.cfg.ServiceAccount, "serviceAccount", true); err == nil {
		c.ids.Require(id)
	}
	server := &admin.Server{Pending: c.pending, Details: c.details, State: c.state, Registry: c.registry, More: c.endpoints()}
	g, run := errgroup.WithContext(ctx)
	g.Go(func() error { return c.ids.Run(run) })
	g.Go(func() error { c.gateways.run(run); return nil })
	g.Go(func() error { return c.stream.Run(run) })
	g.Go(func() error { c.followLinks(run); return nil })
	g.Go(func() error { c.imports.Run(run); return nil })
	g.Go(func() error { c.declared.Run(run); return nil })
	g.Go(func() error { c.namespaces.Run(run); return nil })
	g.Go(func() error { c.source.Run(run); return nil })
	g.Go(func() error { c.notice(run); return nil })
	g.Go(func() error { return c.authority.run(run, c.log) })
	g.Go(func() error { return c.election.Run(run, c.lead) })
	g.Go(func() error { return server.Run(run, c.admin) })
	g.Go(func() error { return server.RunOperations(run, c.operations) })
	g.Go(func() error {
		if server.AwaitReady(run, func(pending []string) { c.log.Warn().Strs("pending", pending).Msg("started, not ready") }) {
			c.log.Info().Str("network", c.cfg.Network).Msg("ready")
		}
		return nil
	})
	err := g.Wait()
	if ctx.Err() != nil {
		err = nil
	}
	c.log.Info().Msg("stopped")
	return err
}

// linksEvery is how often the file of links is read again.
const linksEvery = 10 * time.Second

// followLinks reads the file of links again and again.
func (c *Controller) followLinks(ctx context.Context) {
	if c.links == nil {
		return
	}
	tick := time.NewTicker(linksEvery)
	defer tick.Stop()
	told := c.links.Unread() // by Open
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		changed, err := c.links.Reread()
		if err != nil && !told {
			c.log.Warn().Err(err).Str("field", "federation.networks").Str("effect", c.withoutLinks()).Msg("keys of other networks not read")
		}
		if told = err != nil; changed {
			c.log.Info().Int("networks", len(c.links.Names())).Msg("networks known by their keys have changed")
			c.stream.SetKnown(c.links.Known())
			c.exports.relinked(time.Now())
			c.nudge()
		}
	}
}

func (c *Controller) nudge() { nudge(c.wake) }

func nudge(slot chan struct{}) {
	select {
	case slot <- struct{}{}:
	default:
	}
}

// notice takes in what is heard, also while another one leads.
func (c *Controller) notice(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var s steady
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.stream.Changes():
		case <-c.imports.Changed():
			c.nudge()
			continue
		case <-c.declared.Changed():
			c.nudge()
			continue
		case <-c.namespaces.Changed():
			c.nudge()
			continue
		case <-tick.C:
			c.tellFaults(s.settle(c.faults(), time.Now()))
			c.mu.Lock()
			changed := c.attached.note(len(c.cfg.Gateways) == 0 || c.stream.Attached() > 0, time.Now())
			c.mu.Unlock()
			if changed {
				c.nudge()
			}
		}
		whole := c.exports.settle(time.Now())
		changes := c.stream.TakeChanges()
		if c.exports.update(changes); whole || len(changes) > 0 {
			c.nudge()
		}
	}
}

// pending names what this process waits for before it is ready.
func (c *Controller) pending() (list []string) {
	if synced, absent, _ := c.imports.Status(); !synced && !absent {
		list = append(list, "ServiceImports are not known yet")
	}
	if !c.synced() {
		list = append(list, "the Kubernetes cluster is not known yet")
	}
	return slices.Concat(list, c.authority.pending(), c.ids.Missing())
}

// synced reports whether all that the cluster had has been read.
func (c *Controller) synced() bool {
	select {
	case <-c.source.Synced():
		return true
	default:
		return false
	}
}

// details is what is shown beside readiness.
func (c *Controller) details() map[string]any {
	return map[string]any{"problems": c.findings()}
}

// findings are what an operator should know, a line each.
func (c *Controller) findings() []string {
	out := []string{}
	out = append(out, c.objects.overlaps()...)
	for what, why := range c.client.Failing() {
		out = append(out, fmt.Sprintf("Kubernetes API server: %s: %s", what, why))
	}
	out = append(out, c.source.Status().Findings()...)
	if err := c.links.Failure(); err != nil {
		out = append(out, fmt.Sprintf("federation.networks not read, %s: %v", c.withoutLinks(), err))
	}
	if c.stream.Attached() == 0 && len(c.cfg.Gateways) > 0 {
		out = append(out, "no gateway of this network tells what others export: what is imported stays as it is; gateways before "+observersSince+" do not know observers")
	}
	for _, n := range c.exports.unheard() {
		out = append(out, fmt.Sprintf("not all is known that network %s exports: what is imported of it stays as it is", n))
	}
	out = append(out, c.stream.Unproven()...)
	out = append(out, c.exports.problems()...)
	c.mu.Lock()
	defer c.mu.Unlock()
	most := map[string]int{}
	for _, p := range c.problems {
		if most[p.Reason]++; most[p.Reason] <= maxFindings {
			out = append(out, fmt.Sprintf("ServiceImport %s: %s", p.Name, p))
		}
	}
	for reason, n := range most {
		if n > maxFindings {
			out = append(out, fmt.Sprintf("ServiceImports: %d more have the problem %s, each with an Event", n-maxFindings, reason))
		}
	}
	out = append(out, sentences(c.held)...)
	for _, text := range []string{c.failure, c.ledger} {
		if text != "" {
			out = append(out, text)
		}
	}
	slices.Sort(out)
	return out
}

// maxFindings is how many imports with the same problem are listed.
const maxFindings = 20

// observersSince is when gateways began to let controllers observe.
const observersSince = "23 November 2026"

// State is what /state shows.
type State struct {
	Leader   string        `json:"leader"`   // who leads, as far as is known here
	Leading  bool          `json:"leading"`  // that is this process
	Attached int           `json:"attached"` // gateways that tell of exports
	Imports  []ImportState `json:"imports"`  // that there are
	Problems []string      `json:"problems"` // what an operator should know
}

// ImportState is one ServiceImport.
type ImportState struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Ours      bool     `json:"ours"` // made by isthmus-controller
	IPs       []string `json:"ips"`
	Clusters  []string `json:"clusters"` // that export it
}

var errNoServices = errors.New("the state of a controller is not by service: ask for /state")

func (c *Controller) state(service string) (any, error) {
	if service != "" {
		return nil, errNoServices
	}
	out := State{Attached: c.stream.Attached(), Imports: []ImportState{}, Problems: c.findings()}
	out.Leader, out.Leading = c.election.Leader()
	all, _ := c.imports.All()
	for n, i := range all {
		x := ImportState{Namespace: n.Namespace, Name: n.Name, Ours: i.Ours, IPs: []string{}, Clusters: i.Clusters}
		for _, a := range i.IPs {
			x.IPs = append(x.IPs, a.String())
		}
		out.Imports = append(out.Imports, x)
	}
	slices.SortFunc(out.Imports, func(a, b ImportState) int {
		if a.Namespace != b.Namespace {
			return compareStrings(a.Namespace, b.Namespace)
		}
		return compareStrings(a.Name, b.Name)
	})
	return out, nil
}
