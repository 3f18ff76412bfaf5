package gateway

// pending names what this gateway waits for before it is ready, and what makes
// it unfit for work: no valid certificate of its own.
func (g *Gateway) pending() []string {
	if g.draining.Load() {
		return []string{"draining"}
	}
	missing := g.ids.Missing()
	select {
	case <-g.settled:
		return missing
	default:
		return append([]string{"federation"}, missing...)
	}
}

// details is what is shown beside readiness.
func (g *Gateway) details() map[string]any {
	return map[string]any{"discovery": g.watcher.Status()}
}
