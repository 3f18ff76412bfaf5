package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
)

// list is how it stands with the list of one kind.
type list struct {
	kind      Kind
	objects   map[Event]known
	read      bool      // in this life, and all that it lacks is noted
	open      bool      // a watch is open: all that happens is told
	none      bool      // the API server has no such list, which is no fault
	failing   bool      // the last question was not answered as it should be
	why       string    // the last time that it failed
	whyTime   time.Time // when that began
	remedy    string    // against that
	since     time.Time // when it was last known to be current; unless open
	held      int       // objects that a list which was read anew lacks, and that stay in force
	heldOf    int       // objects that were known then
	behind    time.Time // since when the API server has been at less than version; zero: it is not
	version   uint64    // of the list and of what the watch told since, as far as the guard has looked
	heard     uint64    // of kinds of policies: the version up to which all is noted that became of them; 0: unknown
	heldSince time.Time
}

// answered notes that a watch is open.
func (s *Source) answered(k Kind) {
	s.mu.Lock()
	l := &s.lists[k]
	was := l.failing
	l.open, l.none, l.failing = true, false, false
	s.mu.Unlock()
	if was {
		s.log.Info().Str("server", s.server).Stringer("list", k).Msg("the Kubernetes API server answers again")
	}
}

// ended notes that a watch is over, as each is from time to time.
func (s *Source) ended(k Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := &s.lists[k]; l.open {
		l.open, l.since = false, time.Now()
	}
}

// absent notes that there are no objects of the kind, nor could be.
func (s *Source) absent(k Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.lists[k]
	l.open, l.none, l.failing = false, true, false
}

// failed notes why a list cannot be followed now.
func (s *Source) failed(k Kind, err error) {
	if errors.Is(err, context.Canceled) {
		return // this process stops
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err // the address is known, and the rest of the question differs each time
	}
	why, remedy := err.Error(), "what is known of the cluster stays in force; see whether the API server runs and can be reached"
	switch {
	case apierrors.IsForbidden(err):
		remedy = fmt.Sprintf("give the role of this process the verbs list and watch for %s", k)
	case apierrors.IsUnauthorized(err):
		remedy = "give this process a token or a certificate that is valid"
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return // the list is read anew at once
	}
	s.mu.Lock()
	l := &s.lists[k]
	tell := !l.failing || l.why != why
	if tell {
		l.why, l.whyTime = why, time.Now()
	}
	other := !l.failing || l.remedy != remedy // who has to act may be another one than before
	l.failing, l.remedy = true, remedy
	s.mu.Unlock()
	if other {
		s.log.Warn().Str("server", s.server).Stringer("list", k).Err(err).Str("remedy", remedy).Msg("the Kubernetes API server does not answer as it should")
	}
}

// withdraw takes notice of all objects of a kind that are not in store; nil is an empty
// one. They are missing, or gone where that is believed.
func (s *Source) withdraw(k Kind, store cache.Store, believed bool) {
	s.mu.Lock()
	all := maps.Clone(s.lists[k].objects)
	s.mu.Unlock()
	for e, was := range all {
		if store != nil {
			if _, there, _ := store.GetByKey(name{e.Namespace, e.Name}.String()); there {
				continue
			}
		}
		s.mu.Lock()
		switch {
		case s.lists[k].objects[e].news != was.news: // the informer has said something else meanwhile
		case believed:
			s.put(e, nil)
		default:
			s.missing[e] = struct{}{}
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.lists[k].read = true
	s.mu.Unlock()
	s.poke()
}

// forget drops the objects of optional kinds that only a cache of another cluster has, as they may come to be
// followed late, and what that cluster counted its changes by.
func (s *Source) forget() {
	s.mu.Lock()
	for k := range s.lists {
		s.lists[k].version, s.lists[k].heard = 0, 0
	}
	for _, o := range optionals {
		s.policed[o.kind] = s.policed[o.kind] && s.lists[o.kind].read
		for e, was := range maps.Clone(s.lists[o.kind].objects) {
			if was.news <= s.restoredTo { // nobody has said since that this cluster has it
				s.put(e, nil)
			}
		}
	}
	s.mu.Unlock()
	s.poke()
}

// known is what was told last of an object that there is.
type known struct {
	news   uint64 // the number of that
	object any
}

// hear notes of which version a policy is, or its end.
func (l *list) hear(o any) {
	if p, is := o.(*keptPolicy); is {
		l.heard = max(l.heard, p.revision)
	}
}

// count keeps books of the objects that there are, nil is that o is gone; s.mu is held.
func (l *list) count(e Event, news uint64, o any) {
	if o == nil {
		delete(l.objects, e)
		return
	}
	if l.objects == nil {
		l.objects = map[Event]known{}
	}
	l.objects[e] = known{news, o}
}

// age is how long ago l was last known to be current.
func (l *list) age(now time.Time) time.Duration {
	if l.open || l.none {
		return 0
	}
	return max(0, now.Sub(l.since))
}
