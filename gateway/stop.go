package gateway

import (
	"context"
	"time"
)

// stopping reports whether this gateway was told to stop.
func (g *Gateway) stopping() bool { return g.lame.Load() || g.draining.Load() }

// serveOn is the lame duck: it goes on for timeouts.lameDuck as before, new connections
// too, as load balancers send some for a while to a pod that is gone from their list. Only
// other gateways and node proxies, which hear it at once, prefer its siblings from now on.
// Readiness stays: Kubernetes takes the pod out of the list by itself, and an endpoint that
// is not ready does not count as serving either, so that where all of a Service's pods
// end nobody would get the connections. A gateway that has not settled serves nobody, and
// has none to wait for. It returns early when one of the channels is closed.
func (g *Gateway) serveOn(accepted, failed <-chan struct{}) {
	if g.cfg.Timeouts.LameDuck == 0 || !g.isSettled() {
		return
	}
	g.lame.Store(true)
	g.introduce()
	g.log.Info().Stringer("for", g.cfg.Timeouts.LameDuck).Msg("told to stop, serving on")
	over := time.NewTimer(g.cfg.Timeouts.LameDuck)
	defer over.Stop()
	select {
	case <-over.C:
	case <-accepted:
	case <-failed:
	}
}

// drain sends clients to other gateways and waits for open streams. What it says of
// the pods behind it stays as it is: they are as well as before.
func (g *Gateway) drain() {
	g.draining.Store(true)
	g.introduce()
	if g.cfg.ReusePort {
		g.handover.yield() // for good: whoever listens here now is to hear the node proxies
	}
	g.log.Info().Msg("draining")
	ctx, cancel := context.WithTimeout(g.background, g.cfg.Timeouts.Drain)
	defer cancel()
	g.sessions.Drain(ctx)
}
