package nodeproxy

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// releaseEvery is how often rules are looked for that a node proxy which still runs may have set.
const releaseEvery = 5 * time.Second

// release takes the rules of this mesh's node proxies out of all pods of the node, until ctx ends.
func (p *Proxy) release(ctx context.Context) {
	finder := podns.Finder{Proc: p.cfg.Capture.Proc}
	said := ""
	for first := true; first || pause(ctx, releaseEvery); first = false {
		pods, err := finder.All()
		if err != nil && err.Error() != said {
			said = err.Error()
			p.log.Error().Err(err).Msg("cannot look for the network namespaces of pods: give this process the node's proc file system (capture.proc) and the capability SYS_PTRACE")
		}
		for uid, s := range pods {
			p.releasePod(uid, s.Namespace)
			s.Close()
		}
		for _, n := range p.cfg.Capture.Namespaces {
			if ns, err := podns.Open(n.Path); err == nil {
				p.releasePod(n.Workload, ns)
				ns.Close()
			}
		}
	}
}

// releasePod takes out what is there.
func (p *Proxy) releasePod(uid string, ns *podns.Namespace) {
	if home, err := podns.Own(); err != nil || ns.ID() == home {
		return
	}
	owner, there, err := capture.Owner(ns)
	if err == nil && there && owner == p.captureOwner() {
		if err = errors.Join(capture.Remove(ns), capture.RemoveSource(ns)); err == nil {
			p.log.Info().Str("workload", uid).Str("owner", owner).Msg("released")
		}
	}
	if err != nil {
		p.log.Error().Str("workload", uid).Err(err).Msg("cannot take rules out of a pod")
	}
}
