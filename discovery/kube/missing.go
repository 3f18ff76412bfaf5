package kube

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	probeEvery   = 5 * time.Second
	probeTimeout = time.Second
	// probesAtOnce is how many held pods are asked at the same time, and probesPerRound how
	// many in one round.
	probesAtOnce   = 64
	probesPerRound = 1000
	// probePort is where a pod's node proxy listens for it.
	probePort = "15008"
)

// probes are the answers of one round, by pod.
type probes map[verdict]bool

// answers asks whether somebody listens at the address of a pod.
func answers(ctx context.Context, address string) bool {
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(address, probePort))
	if err == nil {
		c.Close()
	}
	return err == nil
}

// look does what is due: it judges what is missing, asks held pods, writes the cache.
func (s *Source) look(ctx context.Context, running *sync.WaitGroup, now time.Time) {
	s.rewound(now)
	known := s.misses(now)
	taken, clusterIPs := s.addresses(), s.clusterIPs()
	for k := range kinds {
		gone, held := s.guard.judge(k, known[k], now, func(n name) bool {
			return s.cluster.needs(k, n, s.isMissing) && (k != Pods || !taken[s.cluster.address(n)]) &&
				(k != Services || !slices.ContainsFunc(clusterIPsOf(s.cluster.services[n]), func(ip string) bool { return clusterIPs[ip] }))
		})
		s.gone(k, gone...)
		if held > 0 {
			s.log.Warn().Str("server", s.server).Stringer("list", k).Int("missing", held).Int("of", known[k]).Str("confirm", s.guard.id()).
				Str("remedy", "if they were deleted while the API server was out of reach, wait or POST /kubernetes/confirm?id= with the name at confirm to the admin address; if it has lost them (an etcd from an old backup, another cluster), make them anew").
				Msg("a list of the Kubernetes API server lacks what was known: it stays in force for a while, pods for as long as they answer")
		}
	}
	s.tellHeld()
	s.ask(ctx, running, now)
	s.save(running, now)
}

// misses lets the guard know what is missing now, and returns how many objects are known.
func (s *Source) misses(now time.Time) (known [kinds]int) {
	var missing [kinds]map[name]uint64
	s.mu.Lock()
	for k := range s.lists {
		known[k] = len(s.lists[k].objects)
		a := &s.guard.missing[k]
		a.cached = a.cached && !s.lists[k].read
	}
	for e := range s.missing {
		if missing[e.Kind] == nil {
			missing[e.Kind] = map[name]uint64{}
		}
		missing[e.Kind][name{e.Namespace, e.Name}] = s.lists[e.Kind].objects[e].news
	}
	s.mu.Unlock()
	for k := range kinds {
		more := s.guard.set(k, missing[k], now)
		s.saver.dirty = s.saver.dirty || more
	}
	return known
}

// isMissing reports whether the guard knows that an object is missing.
func (s *Source) isMissing(k Kind, n name) bool { return s.guard.missing[k].lost[n] != nil }

// addresses returns those of pods and nodes that are there, if any pod is missing: who has the
// address of one that is missing has taken its place.
func (s *Source) addresses() map[string]bool {
	if len(s.guard.missing[Pods].lost) == 0 {
		return nil
	}
	out := map[string]bool{}
	for n, p := range s.cluster.pods {
		over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if !over && !p.Spec.HostNetwork && p.Status.PodIP != "" && !s.isMissing(Pods, n) {
			out[p.Status.PodIP] = true
		}
	}
	for n, node := range s.cluster.nodes {
		for _, a := range node.Status.Addresses {
			if !s.isMissing(Nodes, name{name: n}) {
				out[a.Address] = true
			}
		}
	}
	return out
}

// clusterIPs returns those of services that are there, if any service is missing: who has that of
// one that is missing has taken its place.
func (s *Source) clusterIPs() map[string]bool {
	if len(s.guard.missing[Services].lost) == 0 {
		return nil
	}
	out := map[string]bool{}
	for n, svc := range s.cluster.services {
		if !s.isMissing(Services, n) {
			for _, ip := range clusterIPsOf(svc) {
				out[ip] = true
			}
		}
	}
	return out
}

// clusterIPsOf are the virtual addresses of a service, nil of none.
func clusterIPsOf(s *corev1.Service) (out []string) {
	if s == nil {
		return nil
	}
	for _, ip := range append(slices.Clone(s.Spec.ClusterIPs), s.Spec.ClusterIP) {
		if ip != "" && ip != corev1.ClusterIPNone {
			out = append(out, ip)
		}
	}
	return out
}

// rewound looks whether the API server has gone backwards: what it counts its changes by
// (resourceVersion, of which Kubernetes says since 1.35 that they may be compared) is less
// than it was. An etcd that was restored from a backup does that, unless whoever restored it
// has moved its revision on (etcdutl snapshot restore --bump-revision). One of several API servers that
// lags behind the others looks so at the first list, which it may answer from what it has; it has caught up
// within lagFor.
func (s *Source) rewound(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.lists {
		c, l := s.followed[k], &s.lists[k]
		if c == nil {
			continue
		}
		is := parseVersion(c.LastSyncResourceVersion())
		if is == 0 { // it has read no list yet
			continue
		}
		if is < l.version {
			l.heard = min(l.heard, is)
			if l.behind.IsZero() {
				l.behind = now
			}
			if now.Sub(l.behind) < lagFor {
				continue
			}
			if now.Sub(s.guard.rewound) >= rewoundFor {
				s.log.Error().Str("server", s.server).Stringer("list", Kind(k)).Uint64("was", l.version).Uint64("is", is).
					Str("remedy", "see whether its etcd was restored from a backup: make anew what was made since that, or POST /kubernetes/confirm to the admin address").
					Msg("the Kubernetes API server has gone backwards: what it lacks is held for a day")
			}
			s.guard.rewind(now)
			s.saver.dirty = true
		}
		l.version, l.behind = is, time.Time{}
	}
}

// parseVersion returns a resourceVersion as a number; 0 if it is none.
func parseVersion(v string) uint64 {
	n, _ := strconv.ParseUint(v, 10, 64)
	return n
}

// gone notes that objects are believed to be gone, but for those of which there is other
// news by now.
func (s *Source) gone(k Kind, verdicts ...verdict) {
	if len(verdicts) == 0 {
		return
	}
	s.mu.Lock()
	for _, v := range verdicts {
		if e := (Event{Kind: k, Namespace: v.namespace, Name: v.name.name}); s.lists[k].objects[e].news == v.news {
			s.put(e, nil)
		}
	}
	s.mu.Unlock()
	s.poke()
}

// tellHeld lets Status know what is held.
func (s *Source) tellHeld() {
	id := s.guard.id()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = id
	for k := range kinds {
		a := &s.guard.missing[k]
		s.lists[k].held, s.lists[k].heldOf, s.lists[k].heldSince = a.held(), a.of, a.begun()
	}
}

// ask starts a round of probes of held pods, if one is due.
func (s *Source) ask(ctx context.Context, running *sync.WaitGroup, now time.Time) {
	if s.asking || now.Sub(s.asked) < probeEvery {
		return
	}
	ask := map[verdict]string{}
	for _, v := range s.guard.probe(probesPerRound) {
		ask[v] = s.cluster.address(v.name)
	}
	if len(ask) == 0 {
		return
	}
	s.asking, s.asked = true, now
	running.Go(func() {
		var mu sync.Mutex
		var all sync.WaitGroup
		got, slots := probes{}, make(chan struct{}, probesAtOnce)
		for v, address := range ask {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				is := s.probe(ctx, address)
				mu.Lock()
				defer mu.Unlock()
				got[v] = is
			})
		}
		all.Wait()
		select {
		case s.probed <- got:
		case <-ctx.Done():
		}
	})
}

// judgeProbes takes in a round of probes.
func (s *Source) judgeProbes(got probes) {
	s.asking = false
	n := 0
	for pod, does := range got {
		if s.guard.answered(pod, does) {
			s.gone(Pods, pod)
			n++
		}
	}
	if n > 0 {
		s.log.Info().Int("pods", n).Msg("pods that the Kubernetes API server no longer lists do not answer either: they are gone")
	}
	s.tellHeld()
}

// confirmation is an operator's word that what is held is gone.
type confirmation struct {
	id     string
	answer chan error
}

// ErrNotHeld says that nothing, or something else, is held.
var ErrNotHeld = errors.New("nothing that is held has this name: GET /state has it as kubernetes.held")

// Confirm lets go of what the guard holds under the name id. It waits for Run.
func (s *Source) Confirm(ctx context.Context, id string) error {
	c := confirmation{id, make(chan error, 1)}
	select {
	case s.confirm <- c:
		return <-c.answer
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Source) release(c confirmation) {
	if id := s.guard.id(); id == "" || id != c.id {
		c.answer <- ErrNotHeld
		return
	}
	for k := range kinds {
		s.gone(k, s.guard.release(k)...)
	}
	s.tellHeld()
	s.apply()
	s.log.Info().Str("confirm", c.id).Msg("confirmed: what the Kubernetes API server no longer lists is gone")
	c.answer <- nil
}
