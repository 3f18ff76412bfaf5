// Package imported follows the ServiceImports of a cluster, and says which services come
// of them: the virtual addresses of what other networks export to this one, and its names.
//
// It promises that an import gives way to a Service of its name, which discovery knows
// already, and that without the API server everything stays as it was. It never writes.
package imported

import (
	"cmp"
	"context"
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
	told    map[discovery.Key]discovery.Service // of Run alone
}

// Open returns a Source of the cluster that c names. It asks the API server nothing yet.
func Open(c kube.Config, sink kube.Sink, log zerolog.Logger) (*Source, error) {
	client, err := owned.Open(c, "", log)
	if err != nil {
		return nil, err
	}
	return &Source{client.Imports(), sink, map[discovery.Key]discovery.Service{}}, nil
}

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
	next := map[discovery.Key]discovery.Service{}
	for _, i := range list {
		if r, ok := service(i); ok {
			next[discovery.Key{Kind: discovery.KindService, Source: discovery.Told, Name: i.Name.String()}] = r
		}
	}
	for k, r := range next {
		if old, was := s.told[k]; !was || !reflect.DeepEqual(old, r) {
			changes = append(changes, discovery.Change{Key: k, Record: r})
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
