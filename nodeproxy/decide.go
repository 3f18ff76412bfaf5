package nodeproxy

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/decider"
)

const (
	// decidedFor is how long the kernel applies a decision that no change of discovery ends. While no node proxy runs, an
	// address that joins the mesh may be reached in plain text for as long.
	decidedFor = 5 * time.Minute
	// refusedFor is how long a virtual address without a route is refused before it is looked up again.
	refusedFor = time.Second
	// reviewEvery is how often expired decisions are removed.
	reviewEvery = 30 * time.Second
	// reviewAgain is the pause after a review that failed to change the rules.
	reviewAgain = time.Second
)

// destinations judges the destinations of one captured pod. It implements [decider.Judge].
type destinations struct {
	p *Proxy
	h *captured
}

// Judge implements [decider.Judge]. Captured addresses without a route are refused, and never left to the kernel, because
// no pod has them.
func (d destinations) Judge(to netip.AddrPort) (v capture.Verdict, lasts time.Duration, ask bool) {
	p, leads := d.p, d.p.pods.Leads(d.h.pod, to.Addr())
	switch {
	case p.knows(d.h.uid, to):
		return capture.Mesh, decidedFor, false
	case leads:
		return capture.Refused, refusedFor, p.stream != nil
	case p.own == nil:
		return capture.Direct, decidedFor, false
	case p.direct.reserve(to.Addr(), time.Now()):
		return capture.Direct, decidedFor, true
	}
	return capture.Direct, askedFor, true
}

// Ask implements [decider.Judge]. It queries the gateways.
func (d destinations) Ask(ctx context.Context, to netip.AddrPort) (asked bool) {
	flow := flowTo(to.Addr().String(), to.Port())
	if flow.Source = d.p.store.Current().Workload(d.h.uid); flow.Source == nil {
		flow.Source = &mesh.Workload{} // discovery no longer lists the pod
	}
	if _, asked = d.p.learn(ctx, flow); asked && d.p.own != nil { // without a gateway it does not wait
		d.p.stream.Described(ctx, to.Addr().Unmap().String(), firstTold)
	}
	return asked
}

// Decided implements [decider.Judge].
func (d destinations) Decided(v capture.Verdict) {
	d.p.metrics.decided.WithLabelValues(v.String()).Inc()
}

// decide decides on the first packets of the pod's connections, until h.first is closed or ctx ends.
func (h *captured) decide(ctx context.Context) {
	if h.first == nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { h.first.Close() })()
	d := decider.New(h.first, destinations{h.p, h})
	sub := h.p.store.Subscribe() // before the first decision, which each later change may end
	defer sub.Close()
	var reviews sync.WaitGroup
	reviews.Go(func() { h.review(ctx, d, sub) })
	for {
		packet, err := h.first.Next()
		if err != nil {
			break
		}
		d.Packet(ctx, packet)
	}
	cancel()
	d.Wait()
	reviews.Wait()
}

// review revokes decisions that changes of discovery, received from sub, invalidate. It runs until ctx ends.
func (h *captured) review(ctx context.Context, d *decider.Decider, sub *discovery.Subscription) {
	next := time.NewTimer(reviewEvery)
	defer next.Stop()
	var missed discovery.Changes // of reviews that could not change the rules
	for {
		var snap *mesh.Snapshot
		changes := missed
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			snap = h.p.store.Current()
		case <-sub.C():
			if snap, changes = sub.Take(); missed.All {
				changes = missed
			}
		}
		wait := reviewEvery
		if missed = (discovery.Changes{}); !d.Review(changedAddresses(snap, changes)) {
			missed, wait = discovery.Everything(), reviewAgain
		}
		next.Reset(wait)
	}
}

// changedAddresses returns a function that reports whether changes may have added an address to the mesh.
func changedAddresses(snap *mesh.Snapshot, changes discovery.Changes) func(netip.Addr) bool {
	if changes.All {
		return func(netip.Addr) bool { return true }
	}
	at := map[netip.Addr]struct{}{}
	add := func(list []netip.Addr) {
		for _, a := range list {
			at[a.Unmap()] = struct{}{}
		}
	}
	for uid := range changes.Workloads {
		if w := snap.Workload(uid); w != nil {
			add(w.Addresses)
		}
	}
	for host := range changes.Services {
		if s := snap.Service(host); s != nil {
			add(s.VIPs)
			if s.Import != nil {
				add(s.Import.VIPs)
			}
		}
	}
	return func(a netip.Addr) bool { _, ok := at[a]; return ok }
}

// maxDirect bounds the addresses outside the mesh that a node proxy subscribes to: half of its subscriptions.
const maxDirect = 1000

// directAddresses are the addresses that are decided Direct while gateways are the source of discovery. The node proxy
// subscribes to each for as long as the decision may last, so that the decision ends when a pod or service gets the address.
// The zero value is ready. Safe for concurrent use.
type directAddresses struct {
	mu    sync.Mutex
	until map[string]time.Time // by address, as gateways are asked
}

// reserve reports whether there is room for a. It stays for as long as a decision that is made now.
func (d *directAddresses) reserve(a netip.Addr, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := a.Unmap().String()
	if _, has := d.until[name]; !has && len(d.until) >= maxDirect {
		return false
	}
	if d.until == nil {
		d.until = map[string]time.Time{}
	}
	d.until[name] = now.Add(decidedFor + reviewEvery)
	return true
}

func (d *directAddresses) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, has := d.until[name]
	return has
}

// sweep removes expired addresses, and returns these and the rest.
func (d *directAddresses) sweep(now time.Time) (expired, rest []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, until := range d.until {
		if now.Before(until) {
			rest = append(rest, name)
			continue
		}
		delete(d.until, name)
		expired = append(expired, name)
	}
	return expired, rest
}

// watchDirect keeps the subscriptions to addresses that pods reach directly, until ctx ends.
func (p *Proxy) watchDirect(ctx context.Context) {
	for p.own != nil && pause(ctx, askedFor) {
		expired, rest := p.direct.sweep(time.Now())
		p.forgetNames(expired)
		p.stream.Follow(rest...) // or other names would take their places
	}
}
