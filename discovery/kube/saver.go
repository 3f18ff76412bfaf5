package kube

import (
	"errors"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/isthmus-mesh/isthmus/internal/backoff"
)

const (
	// lookEvery is how often Run looks at what time alone changes.
	lookEvery = time.Second
	// saveEvery is the least time between two writes of the cache, and restEvery the time
	// after which it is written anew although nothing has changed: its age is what a process
	// that starts from it will call its own.
	saveEvery = 10 * time.Second
	restEvery = 5 * time.Minute
	// retryFirst is the longest wait after a first write that failed; restEvery bounds it.
	retryFirst = 2 * time.Second
	// longestMissing bounds what is believed of a cache.
	longestMissing = 365 * 24 * time.Hour
)

// saver writes the cache of a Source. Run's alone.
type saver struct {
	path    string // empty without a cache
	dirty   bool   // something has changed since the last write
	live    bool   // every list has been read
	tried   time.Time
	next    time.Time  // not before then
	failed  int        // writes in a row
	writing chan error // nil: nobody writes; has one when the write is over
}

// CacheStatus is how it stands with the cache of a Source.
type CacheStatus struct {
	File     string    `json:"file,omitempty"`    // path; empty without a cache
	Saved    time.Time `json:"saved,omitzero"`    // when its content was current
	Restored bool      `json:"restored,omitzero"` // content in force is from the cache; not all was read from the API server since
	Error    string    `json:"error,omitempty"`   // why it was not read or written
}

// restore puts into force what the cache has, and reports whether there was anything.
func (s *Source) restore() bool {
	if s.saver.path == "" {
		return false
	}
	h, objects, missing, err := readCache(s.saver.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false
	case err == nil && h.Network != s.cluster.network:
		err = errors.New("it is of network " + h.Network)
	}
	if err != nil {
		s.cacheFailed("the cache of the Kubernetes cluster is left aside", err)
		return false
	}
	s.mu.Lock()
	s.cached.Saved, s.cached.Restored, s.restoredOf = h.Saved, true, h.Cluster
	for _, k := range policyKinds {
		s.policed[k] = h.Policed
	}
	for k := range s.lists {
		s.lists[k].since = h.Saved
	}
	s.mu.Unlock()
	for _, e := range objects {
		o := e.Object
		e.Object = nil
		s.note(e, o)
		if _, lacked := missing[e]; lacked { // it may be of before the API server went backwards the last time
			continue
		}
		if m, is := o.(metav1.Object); is { // so that it is seen if the API server has gone backwards since
			l := &s.lists[e.Kind]
			l.version = max(l.version, parseVersion(m.GetResourceVersion()))
		}
	}
	s.missesStill(missing, h.Written, time.Now())
	s.apply()
	s.saver.dirty = false
	close(s.synced)
	s.log.Warn().Str("file", s.saver.path).Int("objects", len(objects)).Int("missing", len(missing)).Dur("age", time.Since(h.Saved)).Msg("the Kubernetes cluster is as the cache has it, until its API server answers")
	return true
}

// missesStill takes in what was missing when the cache was written. It is held on from there, and for
// as long as a list is not read anew.
func (s *Source) missesStill(missing map[Event]cacheMissing, written, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for e, m := range missing {
		s.missing[e] = struct{}{}
		since := now.Add(-time.Duration(min(m.MS, longestMissing.Milliseconds())) * time.Millisecond).Add(-max(0, now.Sub(written)))
		s.guard.restore(e, s.lists[e.Kind].objects[e].news, since, m.Restored, len(s.lists[e.Kind].objects))
	}
}

// current notes whether what is in force is what the API server said in this life.
func (s *Source) current(is bool) {
	s.saver.live = is
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cached.Restored = s.cached.Restored && !is
}

// save writes the cache if it is time to.
func (s *Source) save(running *sync.WaitGroup, now time.Time) {
	v := &s.saver
	v.written(now)
	if v.path == "" || !v.live || v.writing != nil || now.Before(v.next) || !v.dirty && now.Sub(v.tried) < restEvery {
		return
	}
	oldest := time.Duration(0)
	s.mu.Lock()
	for k := range s.lists {
		oldest = max(oldest, s.lists[k].age(now))
	}
	s.mu.Unlock()
	if !v.dirty && oldest > 0 {
		return // it would be no younger
	}
	v.tried, v.next, v.dirty, v.writing = now, now.Add(saveEvery), false, make(chan error, 1)
	h := cacheHeader{Network: s.cluster.network, Cluster: s.cluster.uid(), Saved: now.Add(-oldest), Written: now, Policed: s.cluster.policies.known}
	objects, missing, done := s.cluster.Objects(), s.guard.cached(now), v.writing
	running.Go(func() {
		err := writeCache(v.path, h, objects, missing)
		done <- err
		if err != nil {
			s.cacheFailed("the cache of the Kubernetes cluster cannot be written", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cached.Saved, s.cached.Error = h.Saved, ""
	})
}

// written takes in how the last write went, once it is over. One that failed is tried again, ever
// later: a disk that was full for a moment must not leave an old cache for longer.
func (v *saver) written(now time.Time) {
	select {
	case err := <-v.writing:
		if v.writing, v.failed = nil, v.failed+1; err == nil {
			v.failed = 0
			return
		}
		v.dirty, v.next = true, now.Add(backoff.Backoff{First: retryFirst, Limit: restEvery}.Next(v.failed))
	default:
	}
}

// cacheFailed notes why the cache is of no use, and logs it once.
func (s *Source) cacheFailed(message string, err error) {
	s.mu.Lock()
	again := s.cached.Error != ""
	s.cached.Error = err.Error()
	s.mu.Unlock()
	if !again {
		s.log.Warn().Str("file", s.saver.path).Err(err).Str("remedy", "give discovery.kube.cache a path in a directory that this process alone writes to").Msg(message)
	}
}

// foreign reports whether the cache was of another cluster than the one whose namespaces
// have been read: then nothing of it is to be held.
func (s *Source) foreign(namespaces cache.Store) bool {
	s.mu.Lock()
	of := s.restoredOf
	s.mu.Unlock()
	o, there, _ := namespaces.GetByKey(metav1.NamespaceSystem)
	ns, is := o.(*corev1.Namespace)
	if of == "" || !there || !is || string(ns.UID) == of {
		return false
	}
	s.log.Warn().Str("file", s.saver.path).Str("cached", of).Str("found", string(ns.UID)).Msg("the cache is of another Kubernetes cluster: nothing of it counts any more")
	return true
}
