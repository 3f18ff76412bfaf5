package gateway

// Reload reads discovery and certificates again, without waiting for the ends.
func (g *Gateway) Reload() {
	g.watcher.Reload()
	g.ids.Reload()
}
