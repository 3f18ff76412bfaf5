package nodeproxy

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
)

// firstUse is how long the first connection to a service waits for what the gateways
// of this network know of it: one exchange inside the cluster.
const firstUse = 100 * time.Millisecond

// use notes that a pod of this node uses a service. Its first use asks the gateways.
func (p *Proxy) use(ctx context.Context, service string) {
	if p.follows() && p.stream.Use(ctx, service, firstUse) {
		p.shares.update(service)
	}
}

// follows reports whether anything is asked of the gateways.
func (p *Proxy) follows() bool {
	return p.stream != nil && (p.view.reports || p.links != nil || p.own != nil)
}

// pin follows the services that static listeners lead to.
func (p *Proxy) pin(snap *mesh.Snapshot) {
	if !p.follows() {
		return
	}
	var names []string
	for _, o := range p.cfg.Outbound {
		host, _, err := splitTarget(o.To)
		if err != nil {
			continue // Validate has said so
		}
		svc := snap.Service(host)
		if a, err := netip.ParseAddr(host); err == nil {
			svc = snap.ServiceAt(a)
		}
		if svc != nil {
			names = append(names, svc.Hostname)
		} else if name, ok := p.askable(flowTo(host, 0)); ok {
			names = append(names, name)
		}
	}
	if p.pods != nil && p.own != nil {
		names = append(names, excerpt.TakenOver)
	}
	p.stream.Pin(names...)
}

// known is what the gateways of this network tell of a share.
func (p *Proxy) known(network, service string) (healthstream.Known, bool) {
	if p.stream == nil {
		return healthstream.Known{}, false
	}
	return p.stream.Known(network, service)
}

// asked is told which ports gateways want a word on. When another process of this
// node proxy has been here before, nobody has seen what happened to the others
// meanwhile: they are asked too, once, behind those.
func (p *Proxy) asked(targets []healthstream.Target, everything bool) {
	p.witness.owe(targets)
	if everything {
		p.askedAll.Do(func() { p.witness.askAll(p.declaredKeys()) })
	}
}

// declaredKeys lists the ports of the workloads of this node that are ready.
func (p *Proxy) declaredKeys() (keys []health.Key) {
	snap := p.store.Current()
	for _, w := range p.locals() {
		if w.State != mesh.Ready && w.State != mesh.Serving {
			continue
		}
		keys = append(keys, keysOf(snap, w)...)
	}
	return keys
}

// keysOf lists the target ports of w's services.
func keysOf(snap *mesh.Snapshot, w *mesh.Workload) (keys []health.Key) {
	for _, svc := range snap.ServicesOf(w.UID) {
		for _, port := range svc.Ports {
			if k := (health.Key{Endpoint: w.Endpoint, Port: w.Target(port)}); k.Port != 0 && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// listenServices tells the view, and the log, what owners say about their network
// services.
func (p *Proxy) listenServices(ctx context.Context) {
	told := map[healthstream.Change]map[uint16]federation.SummaryFact{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.stream.Changes():
		}
		changes := p.stream.TakeChanges()
		p.shares.updateAll(changes)
		for _, c := range changes {
			before := told[c]
			k, ok := p.stream.Known(c.Network, c.Service)
			if ok {
				told[c] = k.Summaries
			} else {
				delete(told, c)
			}
			p.tellKnown(c, before, k.Summaries)
		}
	}
}

// tellKnown compares what is said of a share with what was said before.
func (p *Proxy) tellKnown(c healthstream.Change, before, now map[uint16]federation.SummaryFact) {
	snap := p.store.Current()
	for port := range before {
		if _, ok := now[port]; !ok { // nobody vouches for it any more, and unknown is usable
			p.view.heard(picker.Share{Network: c.Network, Service: c.Service, Port: port}, snap, time.Now())
			if e := p.knownLine(c, port); e != nil {
				e.Msg("no longer known")
			}
		}
	}
	for port, f := range now {
		p.view.heard(picker.Share{Network: c.Network, Service: c.Service, Port: port}, snap, time.Now())
		if old, ok := before[port]; ok && old.Equal(&f) {
			continue
		}
		e := p.knownLine(c, port)
		if e == nil {
			continue
		}
		ids := make([]string, min(len(f.Exceptions), record.MaxExceptions))
		for i := range ids {
			ids[i] = f.Exceptions[i].String()
		}
		e = e.Uint32("healthy", f.Healthy).Uint32("ready", f.Ready).Bool("draining", f.Draining).Strs("exceptions", ids)
		if more := len(f.Exceptions) - len(ids); more > 0 {
			e = e.Int("more_exceptions", more)
		}
		e.Msg("known")
	}
}

// knownEvery is in what time at most 64 lines say what is known of one network, and one
// of all beyond: three ports that change as often as gateways publish, four times a second.
const knownEvery = 5 * time.Second

// knownLines bounds the lines of one process that say what is known. Each line is
// different, so each is a key of its own. Not safe for concurrent use.
type knownLines struct {
	limits logging.PeerLimits // by network
	lines  uint64
}

func newKnownLines() knownLines { return knownLines{limits: logging.PeerLimits{Every: knownEvery}} }

func (l *knownLines) allow(network string, now time.Time) (held int, ok bool) {
	l.lines++
	return l.limits.Allow(network, strconv.FormatUint(l.lines, 36), now)
}

// knownLine begins a line about a port of a share; nil: there are too many of its network.
func (p *Proxy) knownLine(c healthstream.Change, port uint16) *zerolog.Event {
	held, ok := p.lines.allow(c.Network, time.Now())
	if !ok {
		return nil
	}
	return logging.Suppressed(p.log.Info(), held).Str("network", c.Network).Str("service", c.Service).Uint16("port", port)
}
