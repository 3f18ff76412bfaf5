package nodeproxy

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// While a call leaves an application that takes long to accept, discovery takes its service away, or all pods of it. It
// goes back to whom it has left, who accepts in time: without the hedge it would have been answered.
func TestACallGoesBackThatDiscoveryLeavesNobodyElse(t *testing.T) {
	for name, becomes := range map[string]func(mesh.Parts) mesh.Parts{
		"no endpoints": func(p mesh.Parts) mesh.Parts {
			p.Members = nil
			p.Workloads = p.Workloads[:1]
			return p
		},
		"no service": func(p mesh.Parts) mesh.Parts {
			p.Services, p.Members = nil, nil
			return p
		},
	} {
		for _, l := range []link{linkPods, linkGateway} {
			t.Run(name+", "+string(l), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTortured(tame, zerolog.Nop())
					defer w.end()
					w.open(step{op: opOpen, conn: 1, link: l, n: 700})
					c := w.conns[1]
					w.tell(c, client, func(x *script) { x.want = 1000 })
					time.Sleep(50 * time.Millisecond)
					w.client.store.Swap(mesh.NewSnapshot(2, becomes(torturedParts(tame.Pods, 1))))
					w.settle(w.ordered())
					if err := c.judge(); err != nil {
						t.Error(err)
					}
					if n := w.hedges("withdrawn"); n != 1 {
						t.Errorf("%v were withdrawn, want 1", n)
					}
				})
			})
		}
	}
}

// Nothing is opened any more for a workload that discovery does not list.
func TestACallDoesNotGoBackForAWorkloadThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTortured(tame, zerolog.Nop())
		defer w.end()
		w.open(step{op: opOpen, conn: 1, link: linkPods, n: 700})
		time.Sleep(50 * time.Millisecond)
		parts := torturedParts(tame.Pods, 1)
		parts.Workloads = parts.Workloads[1:]
		w.client.store.Swap(mesh.NewSnapshot(2, parts))
		w.settle(w.ordered())
		c := w.conns[1]
		if c.client.rerr == nil || len(c.servers) != 0 {
			t.Errorf("%v, and %d servers have accepted", c.client, len(c.servers))
		}
	})
}

// tame is a world in which only applications do anything.
var tame = options{
	Seed: 1, Delay: time.Millisecond, LinkBuffer: 256 << 10, AppBuffer: 32 << 10, FirstWindow: 64 << 10, StreamWindow: 64 << 10, ConnWindow: 256 << 10,
	PodStreams: 100, GatewayStreams: 100, Pods: 2, Kept: true, Early: true, Attempts: 8,
}
