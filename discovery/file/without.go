package file

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// Without returns a Watcher of no file, for a process on network: what [Watcher.Apply] is
// given is all that there is, in trustDomain.
func Without(network, trustDomain string, store *discovery.Store, log zerolog.Logger) *Watcher {
	w := &Watcher{network: network, own: network, store: store, Log: log, toldLines: logging.PeerLimits{Every: toldEvery}, again: make(chan struct{}, 1), confirm: make(chan confirmation)}
	w.builder = discovery.NewBuilder(store.Current().Revision)
	w.builder.SetTrustDomain(trustDomain)
	w.build(func() {})
	w.status = Status{Revision: store.Current().Revision}
	return w
}

// Excerpt is Without for a node proxy, which gateways of its network tell of the cluster.
func Excerpt(network, trustDomain string, store *discovery.Store, log zerolog.Logger) *Watcher {
	w := Without(network, trustDomain, store, log)
	w.excerpt = true
	return w
}

// idle is Run without a file.
func (w *Watcher) idle(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-w.confirm:
			c.answer <- ErrNotHeld
		case <-w.again:
		}
	}
}
