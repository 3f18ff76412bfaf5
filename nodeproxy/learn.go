package nodeproxy

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/links"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

const (
	// maxAsked is how many names that nobody has offered yet are asked for at once: an
	// application may ask for any. They are shared out among the identities that ask.
	maxAsked = 256
	// askedFor is how long such a name stays asked for, and is not asked for again.
	askedFor = 2 * time.Second
)

// askedNames are names that discovery did not know when the gateways were asked for
// them. Safe for concurrent use.
type askedNames struct {
	mu    sync.Mutex
	names map[string]askedName
}

type askedName struct {
	since time.Time
	by    spiffeid.ID // of the pod that was the first to ask
}

// begin reports whether name is asked for; expired are those that are to be asked for
// no longer. Once all places are taken, the identity that has most of them gives up its
// oldest to one that has fewer.
func (a *askedNames) begin(name string, by spiffeid.ID, now time.Time) (asked bool, expired []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	expired = a.expire(now)
	if _, asked = a.names[name]; asked {
		return true, expired
	}
	if len(a.names) >= maxAsked {
		old, ok := a.spare(by)
		if !ok {
			return false, expired
		}
		delete(a.names, old)
		expired = append(expired, old)
	}
	if a.names == nil {
		a.names = map[string]askedName{}
	}
	a.names[name] = askedName{now, by}
	return true, expired
}

// spare is the oldest name of the identity that has most, unless that has no more than
// by would have with another one; the caller holds mu.
func (a *askedNames) spare(by spiffeid.ID) (oldest string, ok bool) {
	places := map[spiffeid.ID]int{}
	most := by
	for _, n := range a.names {
		if places[n.by]++; places[n.by] > places[most] {
			most = n.by
		}
	}
	if places[most] <= places[by]+1 {
		return "", false
	}
	for name, n := range a.names {
		if n.by == most && (oldest == "" || n.since.Before(a.names[oldest].since)) {
			oldest = name
		}
	}
	return oldest, true
}

// expire takes the names that were asked for long enough ago; the caller holds mu.
func (a *askedNames) expire(now time.Time) (names []string) {
	for name, n := range a.names {
		if now.Sub(n.since) >= askedFor {
			delete(a.names, name)
			names = append(names, name)
		}
	}
	return names
}

// sweepNames ends the subscriptions to names that nobody has offered.
func (p *Proxy) sweepNames(now time.Time) {
	p.asking.mu.Lock()
	expired := p.asking.expire(now)
	p.asking.mu.Unlock()
	p.forgetNames(expired)
}

func (p *Proxy) forgetNames(names []string) {
	snap := p.store.Current()
	for _, name := range names {
		if snap.Named(name) == nil && !p.own.means(name) && !p.direct.has(name) {
			p.stream.Forget(name)
		}
	}
}

// learn asks the gateways of this network for what flow asks for and discovery does not
// know, and returns when other networks' offers, if there are any, are in force. It reports
// whether discovery has changed. Asked is false if the gateways are asked for too much already.
func (p *Proxy) learn(ctx context.Context, flow route.Flow) (changed, asked bool) {
	if p.links == nil && p.own == nil || p.stream == nil {
		return false, true
	}
	snap := p.store.Current()
	if svc := known(snap, flow); svc != nil {
		p.use(ctx, svc.Hostname)
		return p.store.Current() != snap, true
	}
	name, ok := p.askable(flow)
	if !ok {
		return false, true
	}
	if !p.direct.has(name) { // or it has a place there
		var expired []string
		asked, expired = p.asking.begin(name, flow.Source.Identity, time.Now())
		p.forgetNames(expired)
		if !asked {
			return false, false
		}
	}
	p.stream.Use(ctx, name, p.firstAnswer())
	p.shares.update(name)
	if svc := known(p.store.Current(), flow); svc != nil && svc.Hostname != name { // other networks offer it by that
		p.use(ctx, svc.Hostname)
	}
	return p.store.Current() != snap, true
}

// known is the service that flow asks for, by name or virtual address, if discovery lists it.
func known(snap *mesh.Snapshot, flow route.Flow) *mesh.Service {
	if flow.Host == "" {
		return snap.ServiceAt(flow.Addr.Addr().Unmap())
	}
	return snap.Service(strings.TrimSuffix(flow.Host, "."))
}

// because adds to a refusal of f why the discovery file's word on that service is not
// used, if it has one.
func (p *Proxy) because(snap *mesh.Snapshot, f route.Flow, err error) error {
	var re *route.Error
	if !errors.As(err, &re) || re.Kind != route.UnknownService && re.Kind != route.NoEndpoint {
		return err
	}
	name, namespace, ok := links.Namespaced(strings.ToLower(strings.TrimSuffix(f.Host, ".")))
	if svc := snap.Service(f.Host); svc != nil {
		name, namespace, ok = svc.Name, svc.Namespace, true
	} else if svc := snap.ServiceAt(f.Addr.Addr().Unmap()); svc != nil {
		name, namespace, ok = svc.Name, svc.Namespace, true
	}
	if !ok || p.watcher == nil {
		return err
	}
	why := p.watcher.LeftOut(namespace, name)
	if why == "" {
		return err
	}
	out := *re
	out.Detail += "; " + why
	return &out
}

// unlisted reports a failure that more of discovery could mend.
func (f *failure) unlisted() bool {
	switch header.Reason(f.reason) {
	case header.ReasonUnknownService, header.ReasonNoEndpoint:
		return f.final
	}
	return false
}
