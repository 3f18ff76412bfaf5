package nodeproxy

// Reload reads discovery and certificates again, without waiting for the ends.
func (p *Proxy) Reload() {
	p.watcher.Reload()
	p.ids.Reload()
}
