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
	// decidedFor is how long the kernel applies a decision that no change of discovery ends. While no node proxy runs it is
	// also how long an address that has joined the mesh meanwhile may be reached in plain text.
	decidedFor = 5 * time.Minute
	// refusedFor is how long a virtual address without a route is refused before it is looked up again.
	refusedFor = time.Second
	// reviewEvery is how often decisions that are over are dropped.
	reviewEvery = 30 * time.Second
	// reviewAgain is the pause after a review that could not change the rules.
	reviewAgain = time.Second
)

// destinations judges what one captured pod opens connections to. It implements [decider.Judge].
type destinations struct {
	p *Proxy
	h *captured
}

// Judge implements [decider.Judge]. Captured addresses that have no route are refused, and never left to the kernel: no
// pod has them.
func (d destinations) Judge(to netip.AddrPort) (v capture.Verdict, lasts time.Duration, ask bool) {
	p, leads := d.p, d.p.pods.Leads(d.h.pod, to.Addr())
	switch {
	case p.knows(d.h.uid, to):
		return capture.Mesh, decidedFor, false
	case leads:
		return capture.Refused, refusedFor, p.stream != nil
	case p.own == nil:
		return capture.Direct, decidedFor, false
	case p.direct.keep(to.Addr(), time.Now()):
		return capture.Direct, decidedFor, true
	}
	return capture.Direct, askedFor, true
}

// Ask implements [decider.Judge]: it asks the gateways.
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
	verdict := "dropped"
	if v != 0 {
		verdict = v.String()
	}
	d.p.metrics.decided.WithLabelValues(verdict).Inc()
}

// decide decides on the first packets of what the pod opens, until h.first is closed or ctx ends.
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

// review has decisions follow discovery, whose changes sub has, until ctx ends.
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

// changedAddresses returns a function that reports whether an address may be one of the mesh since changes, and was not before.
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

// maxDirect is how many addresses that pods reach directly the gateways are asked about all the time: half of what a node
// proxy may ask for.
const maxDirect = 1000

// directAddresses are addresses that are decided Direct where gateways tell what there is. The gateways are asked about each
// for as long as it may be in force: a pod or service that gets the address is known, and the decision ends, as soon as they
// know it. The zero value is ready. Safe for concurrent use.
type directAddresses struct {
	mu    sync.Mutex
	until map[string]time.Time // by address, as gateways are asked
}

// keep reports whether there is room for a, which stays for as long as a decision that is made now.
func (d *directAddresses) keep(a netip.Addr, now time.Time) bool {
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

// sweep drops what is over, and returns it and the rest.
func (d *directAddresses) sweep(now time.Time) (over, rest []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, until := range d.until {
		if now.Before(until) {
			rest = append(rest, name)
			continue
		}
		delete(d.until, name)
		over = append(over, name)
	}
	return over, rest
}

// watchDirect has the gateways asked about addresses that pods reach directly, until ctx ends.
func (p *Proxy) watchDirect(ctx context.Context) {
	for p.own != nil && pause(ctx, askedFor) {
		over, rest := p.direct.sweep(time.Now())
		p.forgetNames(over)
		p.stream.Follow(rest...) // or others would take their places
	}
}
