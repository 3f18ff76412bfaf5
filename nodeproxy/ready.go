package nodeproxy

import (
	"errors"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// pending names what this node proxy waits for before it is ready, and what
// makes it unfit for work: no valid certificate of its own or of a local pod.
func (p *Proxy) pending() []string {
	if p.draining.Load() {
		return []string{"draining"}
	}
	missing := p.ids.Missing()
	if !p.own.told() {
		return append([]string{"discovery"}, missing...)
	}
	if !p.pods.Settled() {
		return append([]string{"capture"}, missing...)
	}
	if !p.ready.Load() {
		return append([]string{"federation"}, missing...)
	}
	return missing
}

// Check reports what the node proxy would wait for after its start: certificates of its own
// and of local pods that discovery files list, and the token that proves its node.
func (p *Proxy) Check() error {
	err := p.ids.Check(p.identities()...)
	if p.cfg.Federation.Token != "" {
		_, odd := p.cfg.Federation.readToken()
		err = errors.Join(err, odd)
	}
	return err
}

// details is what is shown beside readiness.
func (p *Proxy) details() map[string]any {
	details := map[string]any{"discovery": p.watcher.Status()}
	if p.own != nil {
		details["told"] = p.own.state(p.ownGateways())
	}
	return details
}

// identities are those that this process shows to others: its own, and those of
// its pods.
func (p *Proxy) identities() []spiffeid.ID {
	ids := []spiffeid.ID{p.self}
	for _, w := range p.locals() {
		ids = append(ids, w.Identity)
	}
	return ids
}
