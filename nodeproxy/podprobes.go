package nodeproxy

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/reprobe"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// podSchedule is that of probes of the node proxies of pods of the own network, each a TLS
// handshake. One that restarts, or begins to listen for a new pod, is back within a second
// or so. A node that is lost may mean 250 pods: each is asked every six seconds or so then, and
// pods of any number together at most a hundred times a second. At that rate, and with three
// seconds each, Concurrent lets no pod of a node that is back wait for those of one that is lost.
var podSchedule = reprobe.Schedule{First: 100 * time.Millisecond, Limit: 2 * time.Second, Bound: 30 * time.Second, Least: time.Second,
	Timeout: 3 * time.Second, Spacing: 20 * time.Millisecond, Concurrent: 300}

// maxPodProbes bounds how many pods are asked. Of more that fail at once the last are out as
// long as their ejections say.
const maxPodProbes = 2000

// probedPod is a pod of the own network whose node proxy did not answer, and for whose connections.
type probedPod struct {
	endpoint mesh.EndpointID
	origin   string // UID of the captured workload in whose network namespace they begin; empty: here
}

// probePod asks the node proxy of x until it answers and no port of the pod is out for that any more, or
// discovery lists the pod no more.
func (p *Proxy) probePod(x probedPod) {
	if p.podProbes.Active() >= maxPodProbes {
		return
	}
	var started time.Time
	ask := func(ctx context.Context) error {
		w := podToAsk(p.store.Current(), p.cfg.Network, x.endpoint)
		if w == nil {
			return errUndeclared
		}
		started = time.Now()
		s, err := p.dialer(hopSingle, p.asker(x.origin), []spiffeid.ID{w.Identity}, netip.AddrPortFrom(w.Addresses[0], mesh.HBONEPort))(ctx)
		if err != nil {
			return err
		}
		defer s.Close(nil)
		return s.AwaitSettings(ctx)
	}
	p.podProbes.Watch(x, ask, func(err error) bool {
		snap := p.store.Current()
		w := podToAsk(snap, p.cfg.Network, x.endpoint)
		if w == nil {
			return true
		}
		if errors.Is(err, errUndeclared) {
			return false // it is back since the question
		}
		out, by := p.view.podAnswered(w, snap, x.origin, err, isTimeout(err) && p.late(started), time.Now())
		if !by.IsZero() {
			p.podProbes.By(x, by)
		}
		return !out
	})
}

// podToAsk is the pod of the own network of endpoint id, nil if snap lists none that accepts
// tunnels.
func podToAsk(snap *mesh.Snapshot, network string, id mesh.EndpointID) *mesh.Workload {
	w := snap.WorkloadByEndpoint(id)
	if w == nil || w.Network != network || len(w.Addresses) == 0 || w.Plain {
		return nil
	}
	return w
}

// asker is as whom a pod is asked, and from where: as this node proxy itself, from where
// the connections of the workload from begin, so that what holds for their packets, such as
// a NetworkPolicy, holds for the question. When that one is gone it is put from here.
func (p *Proxy) asker(from string) origin {
	o := origin{id: p.self}
	if p.pods.Get(from) != nil {
		o.from = from
	}
	return o
}
