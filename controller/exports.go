package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/links"
)

// linkGrace is how long what a network exports stands after its link has gone from the
// file: somebody may be about to write the file anew.
const linkGrace = 30 * time.Second

// observed is what health streams have proven; *healthstream.Client is one.
type observed interface {
	Known(network, service string) (healthstream.Known, bool)
	Whole(network string) bool
}

// exports are what other networks export to this one, as far as the links to them let it
// hold. Safe for concurrent use.
type exports struct {
	links       *links.File // nil: none
	trustDomain string
	from        observed

	mu       sync.Mutex
	unread   bool                             // the file of links, since the start: any network may be linked
	said     map[healthstream.Change]struct{} // of which something was told
	of       map[vip.Name]map[string]imports.Export
	admits   links.Admission
	faults   map[healthstream.Change]string // what does not hold, in words
	unlinked map[string]time.Time           // networks that were linked, and since when they are not
	linked   map[string]bool
	fresh    map[string]time.Time // networks that were linked while this process ran, and when: they are asked for again
	whole    map[string]bool      // as of settle
}

func newExports(l *links.File, trustDomain string, from observed) *exports {
	e := &exports{links: l, trustDomain: trustDomain, from: from, said: map[healthstream.Change]struct{}{}, of: map[vip.Name]map[string]imports.Export{},
		faults: map[healthstream.Change]string{}, unlinked: map[string]time.Time{}, linked: map[string]bool{}, fresh: map[string]time.Time{}, whole: map[string]bool{}}
	e.unread = l.Unread()
	for _, n := range l.Names() {
		e.linked[n] = true
	}
	return e
}

// update takes in what has changed of shares.
func (e *exports) update(changes []healthstream.Change) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range changes {
		e.one(c)
	}
}

// relinked takes in that the file of links has changed.
func (e *exports) relinked(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unread = e.links.Unread()
	is := map[string]bool{}
	for _, n := range e.links.Names() {
		is[n] = true
		if delete(e.unlinked, n); !e.linked[n] {
			e.fresh[n] = now
		}
	}
	for n := range e.linked {
		if !is[n] {
			e.unlinked[n] = now
		}
	}
	e.linked = is
	for c := range e.said {
		e.one(c)
	}
}

// importName is that of the ServiceImport for a service that is exported by its canonical
// hostname. What another network says is no name of an object before it has been looked at.
func importName(hostname string) (vip.Name, bool) {
	rest, canonical := strings.CutSuffix(hostname, ".svc.cluster.local")
	name, namespace, ok := strings.Cut(rest, ".")
	if !canonical || !ok || discovery.NetworkName(name) != nil || discovery.NetworkName(namespace) != nil {
		return vip.Name{}, false // both are DNS labels, as names of networks are
	}
	return vip.Name{Namespace: namespace, Name: name}, true
}

// one reads a share again; the caller holds mu.
func (e *exports) one(c healthstream.Change) {
	n, named := importName(c.Service)
	delete(e.faults, c)
	if !named {
		n = vip.Name{}
	}
	delete(e.of[n], c.Network)
	if len(e.of[n]) == 0 {
		delete(e.of, n)
	}
	known, ok := e.from.Known(c.Network, c.Service)
	if !ok {
		delete(e.said, c)
		e.admits.Forget(c.Network, c.Service)
		return
	}
	e.said[c] = struct{}{}
	link, linked := e.links.Get(c.Network)
	if !linked || known.Offer == nil {
		e.admits.Forget(c.Network, c.Service)
		return
	}
	if !named {
		e.faults[c] = fmt.Sprintf("what network %s exports as %s is not imported: the name is not NAME.NAMESPACE.svc.cluster.local, of a name and a namespace that a ServiceImport could have", c.Network, c.Service)
		return
	}
	admitted, ok, fault := e.admits.Admit(link, links.Offer{Network: c.Network, Service: c.Service, Export: known.Offer, Differ: known.Differ}, e.trustDomain, func(string) (string, bool) { return "", false })
	if fault != "" {
		e.faults[c] = fault
	}
	if !ok {
		return
	}
	x := imports.Export{Cluster: c.Network, Headless: known.Offer.Headless, Affinity: string(known.Offer.Affinity)}
	if known.Offer.Created > 0 {
		x.Created = time.Unix(known.Offer.Created, 0).UTC()
	}
	for _, p := range admitted.Ports {
		if p.Name == "" && len(admitted.Ports) > 1 { // Kubernetes wants a name for each of several ports
			p.Name = fmt.Sprint("port-", p.Port)
		}
		x.Ports = append(x.Ports, imports.Port{Name: p.Name, Protocol: "TCP", Port: p.Port})
	}
	if e.of[n] == nil {
		e.of[n] = map[string]imports.Export{}
	}
	e.of[n][c.Network] = x
}

// all returns what is exported, by service.
func (e *exports) all() map[vip.Name][]imports.Export {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[vip.Name][]imports.Export, len(e.of))
	for n, of := range e.of {
		for _, network := range slices.Sorted(maps.Keys(of)) {
			out[n] = append(out[n], of[network])
		}
	}
	return out
}

// settle notes of which networks all is known, and which links have been gone for long;
// changed says that this is not what it was. Call update with what has changed afterwards:
// what makes a network whole comes behind everything that it says.
func (e *exports) settle(now time.Time) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n, at := range e.unlinked {
		if now.Sub(at) >= linkGrace {
			delete(e.unlinked, n)
			changed = true
		}
	}
	whole := map[string]bool{}
	for n := range e.linked {
		if e.from.Whole(n) && now.Sub(e.fresh[n]) >= freshFor {
			whole[n] = true
		}
	}
	changed = changed || !maps.Equal(whole, e.whole)
	e.whole = whole
	return changed
}

// freshFor is how long a network that has just been linked may take to be proven.
const freshFor = 10 * time.Second

// vague reports whether less is known of a network than it exports, as of settle: it is
// linked, and no gateway has told all of it; it was linked until just now; or the file of
// links was not read yet.
func (e *exports) vague(network string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, was := e.unlinked[network]
	return e.unread || was || e.linked[network] && !e.whole[network]
}

// incomplete reports whether any network is vague.
func (e *exports) incomplete() bool {
	return e.vague("") || len(e.unheard()) > 0
}

// unheard are the linked networks of which less is known than they export (vague), sorted.
func (e *exports) unheard() (out []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := range e.linked {
		if !e.whole[n] {
			out = append(out, n)
		}
	}
	for n := range e.unlinked {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// problems are what does not hold, sorted.
func (e *exports) problems() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Values(e.faults))
}
