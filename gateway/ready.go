package gateway

// pending names what this gateway waits for before it is ready, and what makes
// it unfit for work: no valid certificate of its own.
func (g *Gateway) pending() []string {
	if g.draining.Load() {
		return []string{"draining"}
	}
	missing := g.ids.Missing()
	if g.kube != nil && !g.kube.Status().Synced {
		return append([]string{"kubernetes"}, missing...)
	}
	select {
	case <-g.settled:
		return missing
	default:
		return append([]string{"federation"}, missing...)
	}
}

// details is what is shown beside readiness.
func (g *Gateway) details() map[string]any {
	details := map[string]any{"discovery": g.watcher.Status()}
	if g.kube != nil {
		details["kubernetes"] = g.kube.Status()
	}
	if problem := g.unreachable(); problem != nil { // no reason not to be ready: a load balancer leads to what is, and pods of this network need it
		details["address"] = problem
	}
	return details
}

// unfollowed says what of the cluster this gateway cannot follow now.
func (g *Gateway) unfollowed() []string {
	if g.kube == nil {
		return nil
	}
	return append(g.kube.Status().Findings(), g.tokens.Status().Findings()...)
}
