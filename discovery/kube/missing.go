package kube

import (
	"context"
	"errors"
	"net"
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
type probes map[name]bool

// answers asks whether somebody listens at the address of a pod.
func answers(ctx context.Context, address string) bool {
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(address, probePort))
	if err == nil {
		c.Close()
	}
	return err == nil
}

// screen lets the guard know of what is said of objects. A pod that has the address of one
// that is held has taken its place.
func (s *Source) screen(events []Event) {
	var taken map[string]bool
	for _, e := range events {
		n := name{e.Namespace, e.Name}
		s.guard.there(e.Kind, n)
		if p := object[corev1.Pod](e); p != nil && e.Kind == Pods && len(s.guard.missing[Pods].held) > 0 {
			if taken == nil {
				taken = map[string]bool{}
			}
			taken[p.Status.PodIP] = true
		}
	}
	if taken == nil {
		return
	}
	for _, n := range s.guard.probe(len(s.guard.missing[Pods].held)) {
		if taken[s.cluster.address(n)] {
			s.guard.there(Pods, n)
			s.gone(Pods, n)
		}
	}
}

// look does what is due: it judges what is missing, asks held pods, writes the cache.
func (s *Source) look(ctx context.Context, running *sync.WaitGroup, now time.Time) {
	s.mu.Lock()
	missed := s.missed
	s.missed = nil
	var known [kinds]int
	for k := range s.lists {
		known[k] = len(s.lists[k].objects)
	}
	s.mu.Unlock()
	for e := range missed {
		s.guard.miss(e.Kind, name{e.Namespace, e.Name}, now)
	}
	for k := range kinds {
		gone, held := s.guard.judge(k, known[k], now, func(n name) bool { return s.cluster.address(n) != "" })
		s.gone(k, gone...)
		if held > 0 {
			s.log.Error().Str("server", s.server).Stringer("list", k).Int("missing", held).Int("of", known[k]).Str("confirm", s.guard.id()).
				Str("remedy", "see whether the API server has lost them (an etcd from an old backup, another cluster); if they are meant to be gone, POST /kubernetes/confirm?id= with the name at confirm to the admin address").
				Msg("a list of the Kubernetes API server lacks much that was known: it stays in force, pods for as long as they answer")
		}
		s.gone(k, s.guard.over(k, now)...)
	}
	s.tellHeld()
	s.ask(ctx, running, now)
	s.save(running, now)
}

// gone notes that objects are believed to be gone.
func (s *Source) gone(k Kind, names ...name) {
	for _, n := range names {
		s.note(Event{Kind: k, Namespace: n.namespace, Name: n.name}, nil)
	}
}

// tellHeld lets Status know what is held.
func (s *Source) tellHeld() {
	id := s.guard.id()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = id
	for k := range kinds {
		a := &s.guard.missing[k]
		s.lists[k].held, s.lists[k].heldOf, s.lists[k].heldSince = len(a.held), a.of, a.begun
	}
}

// ask starts a round of probes of held pods, if one is due.
func (s *Source) ask(ctx context.Context, running *sync.WaitGroup, now time.Time) {
	if s.asking || now.Sub(s.asked) < probeEvery {
		return
	}
	ask := map[name]string{}
	for _, n := range s.guard.probe(probesPerRound) {
		ask[n] = s.cluster.address(n)
	}
	if len(ask) == 0 {
		return
	}
	s.asking, s.asked = true, now
	running.Go(func() {
		var mu sync.Mutex
		var all sync.WaitGroup
		got, slots := probes{}, make(chan struct{}, probesAtOnce)
		for n, address := range ask {
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				is := s.probe(ctx, address)
				mu.Lock()
				defer mu.Unlock()
				got[n] = is
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
