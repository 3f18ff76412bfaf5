package gateway

import (
	"context"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// behindAfter is how old what this gateway knows of its cluster may be before node proxies
// had better ask another one.
const behindAfter = 10 * time.Second

// offer says what this gateway can tell its node proxies of discovery: nothing before it
// knows its cluster, or what it does not know yet would count as gone.
func (g *Gateway) offer() (synchronised, behind bool) {
	if g.kube == nil {
		return true, false
	}
	s := g.kube.Status()
	return s.Synced, time.Duration(s.AgeMS)*time.Millisecond > behindAfter
}

// tellExcerpts tells node proxies what has changed in discovery of what they need; it ends
// sub.
func (g *Gateway) tellExcerpts(ctx context.Context, sub *discovery.Subscription) {
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.C():
			g.excerpts.Revise(sub.Take())
		}
	}
}
