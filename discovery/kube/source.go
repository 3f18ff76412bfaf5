package kube

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Sink takes what a Source says, and is in force when Apply returns. [file.Watcher] is
// one.
type Sink interface {
	Apply(changes ...discovery.Change) *mesh.Snapshot
}

// pace is the least time between two batches: a rollout of a thousand pods is then some
// snapshots and not a thousand, and the first change of any waits for nobody.
const pace = 20 * time.Millisecond

// Source follows the objects of a cluster. Build it with Open, then Run it once; the rest
// is safe for concurrent use.
type Source struct {
	client kubernetes.Interface
	meta   metadata.Interface
	server string
	sink   Sink
	log    zerolog.Logger

	cluster *Cluster      // of Run alone
	wake    chan struct{} // one slot
	synced  chan struct{} // closed when all lists have been read and applied once

	mu      sync.Mutex
	pending map[Event]any // by the event without its object: the newest object
	lists   [kinds]list
}

// Open returns a Source of the cluster that c names, which is on network. It asks the API
// server nothing yet.
func (c Config) Open(network string, sink Sink, log zerolog.Logger) (*Source, error) {
	client, meta, server, err := c.clients()
	if err != nil {
		return nil, err
	}
	return open(client, meta, server, NewCluster(network, c.SystemNamespace), sink, log), nil
}

func open(client kubernetes.Interface, meta metadata.Interface, server string, cluster *Cluster, sink Sink, log zerolog.Logger) *Source {
	s := &Source{client: client, meta: meta, server: server, cluster: cluster, sink: sink, log: log,
		wake: make(chan struct{}, 1), synced: make(chan struct{}), pending: map[Event]any{}}
	for k := range s.lists {
		s.lists[k] = list{kind: Kind(k), since: time.Now()}
	}
	return s
}

// Synced is closed once all that the cluster had when it was first read is in force.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Run follows the cluster until ctx ends, and returns when everything that it started
// has. Without the API server it goes on trying, at ever longer and random intervals of up to a minute.
func (s *Source) Run(ctx context.Context) {
	ctx = quiet(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	var read []cache.DoneChecker
	for _, k := range []Kind{Namespaces, Nodes, Services, EndpointSlices, Pods} {
		c := s.informer(k)
		read = append(read, c.HasSyncedChecker())
		running.Go(func() { c.RunWithContext(ctx) })
	}
	known := make(chan struct{})
	running.Go(func() { s.followExports(ctx, known) })
	for _, r := range read {
		select {
		case <-ctx.Done():
			return
		case <-r.Done():
		}
	}
	select {
	case <-ctx.Done():
		return
	case <-known:
	}
	s.apply()
	close(s.synced)
	s.log.Info().Str("server", s.server).Msg("the Kubernetes cluster is known")
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		s.apply()
		pause.Reset(pace)
	}
}

// apply takes all that has come into force.
func (s *Source) apply() {
	s.mu.Lock()
	events := make([]Event, 0, len(s.pending))
	for e, o := range s.pending {
		e.Object = o
		events = append(events, e)
	}
	clear(s.pending)
	s.mu.Unlock()
	if len(events) > 0 {
		s.sink.Apply(s.cluster.Apply(events...)...)
	}
}

// note keeps what has become of an object until apply; nil is that it is gone. Of two
// that come meanwhile the later one counts, so this is never more than there are objects.
func (s *Source) note(e Event, o any) {
	s.mu.Lock()
	s.pending[e] = o
	s.lists[e.Kind].count(e, o != nil)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
