package kube

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
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
	clients
	server string
	sink   Sink
	log    zerolog.Logger

	// Of Run alone.
	cluster *Cluster
	guard   guard
	saver   saver
	asked   time.Time   // when held pods were probed last
	asking  bool        // they are being probed
	pods    *pods.Index // nil: nobody asks
	front   fronts

	wake    chan struct{} // one slot
	synced  chan struct{} // closed when all lists have been read and applied once, or a cache was
	confirm chan confirmation
	probed  chan probes
	probe   func(ctx context.Context, address string) bool // whether a pod answers there

	mu         sync.Mutex
	pending    map[Event]any      // by the event without its object: the newest object
	missing    map[Event]struct{} // the latest news is that a list which was read anew lacks them
	news       uint64             // counts what is noted
	lists      [kinds]list
	followed   [kinds]cache.Controller // nil: not yet
	held       string                  // what the guard holds, by name; empty: nothing
	cached     CacheStatus             // how it stands with the cache
	restoredOf string                  // the cluster that the cache was of
	restoredTo uint64                  // the number of the latest news that it had
	policed    [kinds]bool             // kinds of policies of which all are known
}

// Open returns a Source of the cluster that c names, which is on network. It asks the API
// server nothing yet.
func (c Config) Open(network string, sink Sink, log zerolog.Logger) (*Source, error) {
	clients, server, err := c.clients()
	if err != nil {
		return nil, err
	}
	cluster := NewCluster(network, c.SystemNamespace)
	cluster.front.gateways, cluster.policies.root = parseName(c.Gateways), c.RootNamespace
	s := open(clients, server, cluster, sink, log)
	s.saver.path = c.Cache
	s.cached.File = c.Cache
	return s, nil
}

func open(clients clients, server string, cluster *Cluster, sink Sink, log zerolog.Logger) *Source {
	s := &Source{clients: clients, server: server, cluster: cluster, sink: sink, log: log,
		wake: make(chan struct{}, 1), synced: make(chan struct{}), pending: map[Event]any{}, missing: map[Event]struct{}{},
		confirm: make(chan confirmation), probed: make(chan probes, 1), probe: answers}
	for k := range s.lists {
		s.lists[k] = list{kind: Kind(k), since: time.Now()}
	}
	return s
}

// TellPods makes s tell x what it hears of pods. Call it before Run.
func (s *Source) TellPods(x *pods.Index) { s.pods = x }

// Synced is closed once all that the cluster had when it was first read is in force, or
// what a cache has of it.
func (s *Source) Synced() <-chan struct{} { return s.synced }

// Run follows the cluster until ctx ends, and returns when everything that it started
// has. Without the API server it goes on trying, at ever longer and random intervals of up to a minute.
func (s *Source) Run(ctx context.Context) {
	ctx = quiet(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	restored := s.restore()
	s.mu.Lock()
	s.restoredTo = s.news
	s.mu.Unlock()
	read := make(chan struct{})
	s.follow(ctx, &running, read)
	if !restored {
		select {
		case <-ctx.Done():
			return
		case <-read:
		}
		s.apply()
		close(s.synced)
		s.podsKnown()
	}
	pause, tick := time.NewTimer(0), time.NewTicker(lookEvery)
	defer pause.Stop()
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-read:
			s.log.Info().Str("server", s.server).Msg("the Kubernetes cluster is known")
			s.current(true)
			s.podsKnown()
			read = nil
			continue
		case confirm := <-s.confirm:
			s.release(confirm)
			continue
		case probed := <-s.probed:
			s.judgeProbes(probed)
			continue
		case now := <-tick.C:
			if s.lacks(Pods) { // those of the cache are all that anybody can know
				s.podsKnown()
			}
			s.look(ctx, &running, now)
			continue
		case <-s.wake:
		}
		select {
		case <-ctx.Done():
			continue
		case <-pause.C:
		}
		s.apply()
		pause.Reset(pace)
	}
}

// follow starts the informers, and closes read when each list has been read once.
func (s *Source) follow(ctx context.Context, running *sync.WaitGroup, read chan<- struct{}) {
	order := []Kind{Namespaces, Nodes, Services, EndpointSlices, Pods}
	var done []cache.DoneChecker
	var stores []cache.Store
	for _, k := range order {
		store, c := s.informer(k)
		done, stores = append(done, c.HasSyncedChecker()), append(stores, store)
		running.Go(func() { c.RunWithContext(ctx) })
	}
	var known []chan struct{}
	for _, o := range optionals {
		is := make(chan struct{})
		known = append(known, is)
		running.Go(func() { s.followOptional(ctx, o, is) })
	}
	running.Go(func() {
		believed := false
		for i, d := range done {
			select {
			case <-ctx.Done():
				return
			case <-d.Done():
			}
			if i == 0 && s.foreign(stores[0]) {
				believed = true
				s.forget()
			}
			s.withdraw(order[i], stores[i], believed) // what a cache had, and is there no more
		}
		for _, is := range known {
			select {
			case <-ctx.Done():
				return
			case <-is:
			}
		}
		close(read)
	})
}

// podsKnown says that a pod of which nothing was told is none.
func (s *Source) podsKnown() {
	if s.pods != nil {
		s.pods.SetKnown()
	}
}

// lacks reports whether the API server does not answer for a kind.
func (s *Source) lacks(k Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists[k].failing
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
	policed := s.policed[AuthorizationPolicies] && s.policed[PeerAuthentications]
	heard := policy.Revisions{Authorizations: s.lists[AuthorizationPolicies].heard, PeerAuthentications: s.lists[PeerAuthentications].heard}
	s.mu.Unlock()
	if p := &s.cluster.policies; len(events) == 0 && policed == p.known && heard == p.heard {
		return
	} else {
		p.known, p.heard = policed, heard
	}
	s.sink.Apply(s.cluster.Apply(events...)...)
	s.front.set(s.cluster)
	s.saver.dirty = true
	if !s.guard.empty() { // perhaps of what was missing
		s.misses(time.Now())
		s.tellHeld()
	}
}

// note keeps what has become of an object until apply; nil is that it is gone. Of two
// that come meanwhile the later one counts, so this is never more than there are objects.
func (s *Source) note(e Event, o any) {
	s.mu.Lock()
	s.put(e, o)
	s.mu.Unlock()
	s.poke()
}

// put is note; s.mu is held.
func (s *Source) put(e Event, o any) {
	if s.pods != nil && e.Kind == Pods {
		if p := podIn(Event{Object: o}); p != nil {
			s.pods.Set(&corev1.Pod{ObjectMeta: p.meta(), Spec: corev1.PodSpec{NodeName: p.Spec.NodeName, ServiceAccountName: p.Spec.ServiceAccountName}, Status: corev1.PodStatus{Phase: p.Status.Phase}})
		} else {
			s.pods.Remove(e.Namespace, e.Name)
		}
	}
	s.pending[e] = o
	s.lists[e.Kind].hear(o)
	delete(s.missing, e)
	s.news++
	s.lists[e.Kind].count(e, s.news, o)
}

// miss keeps that an object is missing, for the guard to look at.
func (s *Source) miss(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.lists[e.Kind].objects[e]; known { // else somebody has said meanwhile that it is gone
		s.missing[e] = struct{}{}
	}
}

func (s *Source) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
