package controller

import (
	"context"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/identity"
)

// taintWrite is what gates and metrics call the removal of a start-up taint.
const taintWrite = "taint"

// untaint takes the start-up taint from each node whose node proxy is ready, until ctx
// ends. That the pod is ready is the node proxy's own word: it has its certificate and what
// it needs of discovery, and a gateway has it attached. A gateway could tell the last alone,
// and only of the node proxies that are attached to it.
func (c *Controller) untaint(ctx context.Context) {
	if c.cfg.StartupTaint == "" {
		return
	}
	id, err := c.cfg.account(c.cfg.NodeServiceAccount, "nodeServiceAccount", false)
	if err != nil {
		return // Validate has said so
	}
	namespace, name, err := identity.Names(id)
	if err != nil {
		return
	}
	s := c.client.Startup(c.cfg.StartupTaint, namespace, name)
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { s.Run(ctx) })
	gates := newGates()
	for {
		began := time.Now()
		nodes, later := s.Ready(began)
		shuffle(nodes)
		for _, node := range nodes {
			n := vip.Name{Name: node}
			if !gates.open(taintWrite, n, time.Now()) {
				continue
			}
			err := s.Remove(ctx, node)
			if ctx.Err() != nil {
				return
			}
			if c.metrics.writes.WithLabelValues(taintWrite, eventOutcome(err)).Inc(); err != nil {
				gates.failed(taintWrite, n, asOfOne(err), time.Now())
				continue
			}
			gates.done(taintWrite, n, time.Now())
			c.log.Info().Str("node", node).Str("taint", c.cfg.StartupTaint).Msg("the node proxy is ready: start-up taint removed")
		}
		wait := again
		if later > 0 {
			wait = min(wait, later)
		}
		if at, ok := gates.next(began); ok {
			wait = min(wait, max(0, time.Until(at)))
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-s.Changed():
			t.Stop()
		case <-t.C:
		}
	}
}

// asOfOne is err as gates take it: what fails for the API server is tried again as what is
// missing a right, for all alike.
func asOfOne(err error) error {
	if owned.OfOne(err) {
		return err
	}
	return owned.ErrNoRight
}
