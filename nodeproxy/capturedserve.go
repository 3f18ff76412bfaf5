package nodeproxy

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// captured serves one local workload that is captured in its network namespace. It implements [pods.Server].
type captured struct {
	p        *Proxy
	pod      *pods.Pod
	uid      string
	share    *share // of what it opens
	arriving *share // of what is opened to it in plain text
	in       *inbound
	outs     []*outbound // for connections from it, and for plain text to it
	first    *capture.Undecided
}

// serveCaptured returns what serves the listeners of a pod.
func (p *Proxy) serveCaptured(pod *pods.Pod, l pods.Listeners) (pods.Server, error) {
	h := &captured{p: p, pod: pod, uid: pod.UID(), share: newShare(), arriving: newShare(), in: newInbound(p, pod.UID(), l.Tunnels), first: l.Undecided}
	for _, opened := range l.Opened {
		o, err := p.newOutbound(&sharedListener{TCPListener: opened}, h.share.counted(p.captured(h)))
		if err != nil {
			return nil, err
		}
		o.refuse = h.share.refuse(p, access{source: h.uid, direction: "outbound"}, p.refusalOfAll(h.uid))
		h.outs = append(h.outs, o)
	}
	if l.Arriving != nil {
		o, err := p.newOutbound(&sharedListener{TCPListener: l.Arriving}, h.arriving.counted(p.arrived(h)))
		if err != nil {
			return nil, err
		}
		o.refuse = h.arriving.refuse(p, access{workload: h.uid, direction: "inbound", plain: true}, func(int) func() { return nil }) // those of others wait for their turn
		h.outs = append(h.outs, o)
	}
	return h, nil
}

// serving is what serves a pod.
func serving(pod *pods.Pod) *captured { return pod.Server().(*captured) }

// Start implements [pods.Server].
func (h *captured) Start() {
	h.p.running.Go(func() { h.in.run(h.p.data) })
	h.p.running.Go(func() { h.decide(h.p.data) })
	for _, o := range h.outs {
		h.p.running.Go(func() {
			defer h.in.police()() // what comes in plain text may outlast the tunnels
			o.run(h.p.data)
		})
	}
}

// Drain implements [pods.Server].
func (h *captured) Drain(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.in.drain(ctx) })
	for _, o := range h.outs {
		wg.Go(func() { o.drain(ctx) })
	}
	wg.Wait()
}

// Problems implements [pods.Server].
func (h *captured) Problems(now time.Time) (list []string) {
	for _, s := range []*share{h.share, h.arriving} {
		if why := s.reached(now); why != "" {
			list = append(list, why)
		}
	}
	return list
}

// captured serves the connections of one workload that its rules redirect here.
func (p *Proxy) captured(h *captured) serve {
	return func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		to, err := capture.Original(app)
		if err != nil {
			p.peerLines.Sample(p.log.Debug(), h.uid, "captured").Str("workload", h.uid).Stringer("from", app.RemoteAddr()).Err(err).Msg("bad captured connection")
			reset(app)
			return nil
		}
		if !p.pods.Leads(h.pod, to.Addr()) && !p.knows(h.uid, to) { // no longer, and its decision ends
			p.log.Debug().Str("workload", h.uid).Stringer("to", to).Msg("captured connection reset: destination left the mesh")
			reset(app)
			return nil
		}
		return p.carry(ctx, app, h.uid, flowTo(to.Addr().String(), to.Port()), nil, nil, nil)
	}
}
