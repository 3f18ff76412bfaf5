// Package imported follows the ServiceImports of a cluster, and says which services come
// of them: the virtual addresses of what other networks export to this one, and its names.
//
// It promises that an import gives way to a Service of its name, which discovery knows
// already; that no address is taken of an import that isthmus-controller has not made, or
// that is not in its ranges, or that a Service, a pod or an older import has, whatever its
// object says; and that without the API server everything stays as it was. It never writes.
//
// An import that somebody else has made leads to an address that somebody else answers and
// gives to no other service. Taken here, it would take connections away from there, and
// nothing would keep it apart from the addresses of isthmus-controller's own ledger.
package imported

import (
	"cmp"
	"context"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/controller/imports"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// pace is the least time between two batches.
const pace = 100 * time.Millisecond

// Source follows ServiceImports. Build it with Open, then Run it once.
type Source struct {
	imports *owned.Imports
	sink    kube.Sink
	taken   *taken
	told    map[discovery.Key]discovery.Change // of Run alone
}

// Open returns a Source of the cluster that c names, which takes what addresses says. It
// asks the API server nothing yet.
func Open(c kube.Config, addresses Config, sink kube.Sink, log zerolog.Logger) (*Source, error) {
	client, err := owned.Open(c, "", log)
	if err != nil {
		return nil, err
	}
	return &Source{client.Imports(), sink, newTaken(addresses), map[discovery.Key]discovery.Change{}}, nil
}

// Beside returns a sink for what the cluster itself says, which passes it on to sink: so
// imports get no address that something of the cluster has.
func (s *Source) Beside(sink kube.Sink) kube.Sink { return beside{s.taken, sink} }

// Run follows them until ctx ends.
func (s *Source) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.imports.Run(ctx)
	}()
	defer func() { <-done }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.imports.Changed():
		case <-s.taken.changed:
		}
		all, ok := s.imports.All()
		list := make([]imports.Import, 0, len(all))
		for _, i := range all {
			list = append(list, i)
		}
		if ok {
			if changes := s.compare(list); len(changes) > 0 {
				s.sink.Apply(changes...)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pace):
		}
	}
}

// compare returns what is new in list, and forgets what it lacks.
func (s *Source) compare(list []imports.Import) (changes []discovery.Change) {
	next := map[discovery.Key]discovery.Change{}
	holders := map[netip.Addr]imports.Import{}
	slices.SortFunc(list, imports.ByAge)
	for _, i := range list {
		k := discovery.Key{Kind: discovery.KindService, Source: discovery.Told, Name: i.Name.String()}
		c := discovery.Change{Key: k}
		i.IPs, c.Faults = s.taken.admit(i, holders)
		for _, a := range i.IPs {
			holders[a] = i
		}
		if r, ok := service(i); ok {
			c.Record = r
		}
		if c.Record != nil || len(c.Faults) > 0 {
			next[k] = c
		}
	}
	for k, c := range next {
		if old, was := s.told[k]; !was || !reflect.DeepEqual(old, c) {
			changes = append(changes, c)
		}
	}
	for k := range s.told {
		if _, is := next[k]; !is {
			changes = append(changes, discovery.Change{Key: k})
		}
	}
	s.told = next
	slices.SortFunc(changes, func(a, b discovery.Change) int { return cmp.Compare(a.Key.Name, b.Key.Name) })
	return changes
}

// service is what comes of an import; not ok for one that has no address: its shares say
// all there is to say of it.
func service(i imports.Import) (discovery.Service, bool) {
	r := discovery.Service{Name: i.Name.Name, Namespace: i.Namespace, Scope: string(mesh.ScopeGlobal), Takeover: true, VIPs: i.IPs,
		Aliases: []string{i.Name.Name + "." + i.Namespace + ".svc.clusterset.local"}}
	for _, p := range i.Ports {
		r.Ports = append(r.Ports, discovery.ServicePort{Name: p.Name, Port: p.Port, Protocol: p.Protocol})
	}
	return r, len(i.IPs) > 0 && len(r.Ports) > 0 && !i.Headless
}
