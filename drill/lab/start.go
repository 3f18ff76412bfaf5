package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// startTimeout bounds how long all processes of an arm may take to be ready.
const startTimeout = 30 * time.Second

// start brings every process of the arm up, and returns once each is ready and
// traffic flows through every listener.
func (a *armRun) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	defer cancel()
	if err := a.makeCA(ctx); err != nil {
		return err
	}
	if err := writeConfigs(a.dir, a.layout, a.arm); err != nil {
		return err
	}
	if err := a.startRelays(ctx); err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range a.layout.Pods {
		g.Go(func() error { return a.startPod(gctx, p) })
	}
	for _, w := range a.layout.Gateways {
		g.Go(func() error { return a.startGateway(gctx, w) })
	}
	for _, n := range a.layout.Nodes {
		g.Go(func() error { return a.startNode(gctx, n) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c := &clients{network: a.network, layout: a.layout, exchange: a.layout.Scenario.ExchangeOf(a.arm)}
	if err := c.warmUp(ctx); err != nil {
		return &StartError{Process: "traffic", Err: errors.Join(err, context.Cause(ctx)), Log: a.clientLog()}
	}
	return nil
}

func (a *armRun) clientLog() string {
	var e *StartError
	if errors.As(a.startError(a.layout.Clients[0].Node, errors.New("")), &e) {
		return e.Log
	}
	return ""
}

// makeCA has the operator's own tool make the arm's certificate authority.
func (a *armRun) makeCA(ctx context.Context) error {
	p, err := a.launch("ca", a.bin.isthmus, []string{"ca", "init", "--dir", "ca", "--trust-domain", trustDomain}, false, nil)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.asked = true
	p.mu.Unlock()
	select {
	case <-p.gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if p.status != "exit status 0" {
		return a.startError("ca", errors.New(p.status))
	}
	return nil
}

func (a *armRun) startPod(ctx context.Context, p scenario.Pod) error {
	d, err := a.launchPod(ctx, p)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.pods[p.Name] = d
	a.mu.Unlock()
	return nil
}

func (a *armRun) startGateway(ctx context.Context, g scenario.Gateway) error {
	p, err := a.launch(g.Name, a.bin.gateway, []string{"--config", g.Name + ".yaml"}, false, nil)
	if err != nil {
		return err
	}
	return a.ready(ctx, p, g.Admin)
}

func (a *armRun) startNode(ctx context.Context, n scenario.Node) error {
	p, err := a.launch(n.Name, a.bin.nodeproxy, []string{"--config", n.Name + ".yaml"}, false, nil)
	if err != nil {
		return err
	}
	return a.ready(ctx, p, n.Admin)
}

// restart starts a gateway or node proxy again that was killed.
func (a *armRun) restart(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %v", startTimeout))
	defer cancel()
	for _, g := range a.layout.Gateways {
		if g.Name == name {
			return a.startGateway(ctx, g)
		}
	}
	for _, n := range a.layout.Nodes {
		if n.Name == name {
			return a.startNode(ctx, n)
		}
	}
	return fmt.Errorf("%s is no gateway or node proxy", name)
}

// ready polls the process's readiness.
func (a *armRun) ready(ctx context.Context, p *process, admin netip.AddrPort) error {
	for {
		if resp, err := a.get(ctx, admin, "/healthz/ready"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		t := time.NewTimer(25 * time.Millisecond)
		select {
		case <-t.C:
		case <-p.gone:
			return a.startError(p.name, errors.New(p.status))
		case <-ctx.Done():
			return a.startError(p.name, context.Cause(ctx))
		}
	}
}

// get asks a process's admin port. The caller closes the body.
func (a *armRun) get(ctx context.Context, admin netip.AddrPort, path string) (*http.Response, error) {
	c := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return a.network.dial(ctx, time.Now().Add(2*time.Second), admin)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin.String()+path, nil)
	if err != nil {
		return nil, err
	}
	return c.Do(req)
}
