package kube

import (
	"fmt"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Status is what an operator should know about the cluster that is followed.
type Status struct {
	Server string       `json:"server"`         // address of the API server
	Synced bool         `json:"synced"`         // all lists were read and are in force
	AgeMS  int64        `json:"ageMs"`          // time since the oldest list was last known to be current; 0 while all are watched
	Lists  []ListStatus `json:"lists"`          // lists of objects, by kind
	Held   string       `json:"held,omitempty"` // ID of the objects that stay in force although new lists do not have them; to confirm that they are gone
	Cache  CacheStatus  `json:"cache,omitzero"` // state of the cache for a start without the API server
}

// ListStatus is how it stands with one list of objects.
type ListStatus struct {
	Kind          string    `json:"kind"`                   // name at the API server
	Objects       int       `json:"objects"`                // number of known objects
	AgeMS         int64     `json:"ageMs"`                  // time since the list was last known to be current; 0 while it is watched
	Absent        bool      `json:"absent,omitzero"`        // the API server does not have this kind; not a fault
	Failing       bool      `json:"failing"`                // list and watch requests for it fail
	LastError     string    `json:"lastError,omitempty"`    // error now, or the last one
	LastErrorTime time.Time `json:"lastErrorTime,omitzero"` // start of lastError
	Held          int       `json:"held,omitzero"`          // objects that it did not list again after a lost watch; they stay in force for a while
	HeldOf        int       `json:"heldOf,omitzero"`        // number of objects known when the first was held
	HeldSince     time.Time `json:"heldSince,omitzero"`     // since when the oldest of these is missing
}

// Status tells how it stands.
func (s *Source) Status() Status {
	now := time.Now()
	out := Status{Server: host(s.server)}
	select {
	case <-s.synced:
		out.Synced = true
	default:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.lists {
		l := &s.lists[i]
		age := l.age(now).Milliseconds()
		out.AgeMS = max(out.AgeMS, age)
		out.Lists = append(out.Lists, ListStatus{l.kind.String(), len(l.objects), age, l.none, l.failing, l.why, l.whyTime, l.held, l.heldOf, time.Time{}})
		if l.held > 0 {
			out.Lists[i].HeldSince = l.heldSince
		} else {
			out.Lists[i].HeldOf = 0
		}
	}
	out.Held, out.Cache = s.held, s.cached
	return out
}

// host leaves out what of an address could be a secret.
func host(server string) string {
	if u, err := url.Parse(server); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return server
}

// Findings says, a line each, what of the cluster cannot be followed now.
func (s Status) Findings() (lines []string) {
	for _, l := range s.Lists {
		if l.Failing {
			lines = append(lines, fmt.Sprintf("Kubernetes API server %s: %s are as they were %s ago: %s", s.Server, l.Kind, time.Duration(l.AgeMS)*time.Millisecond, l.LastError))
		}
		if l.Held > 0 {
			lines = append(lines, fmt.Sprintf("Kubernetes API server %s: %d of %d %s are missing since %s, and stay in force for a while, pods for as long as they answer: see whether it has lost them (an etcd from an old backup), and make them anew; if they were deleted, wait, or POST /kubernetes/confirm?id=%s to the admin address",
				s.Server, l.Held, l.HeldOf, l.Kind, l.HeldSince.UTC().Format(time.RFC3339), s.Held))
		}
	}
	if s.Cache.Error != "" {
		lines = append(lines, fmt.Sprintf("cache %s of the Kubernetes cluster: %s: this process cannot start while the API server does not answer", s.Cache.File, s.Cache.Error))
	}
	return lines
}

// Collector is what an operator's alert needs of a Source: it collects when it is
// scraped.
type Collector struct {
	s                                          *Source
	synced, age, failing, objects, held, cache *prometheus.Desc
}

// NewCollector makes the collector of s; the process registers it. Of a nil Source it
// describes what it would collect, and collects nothing.
func NewCollector(s *Source) *Collector {
	return &Collector{s,
		prometheus.NewDesc("isthmus_kubernetes_synced", "1 once all lists of the Kubernetes API server were read and are in force.", nil, nil),
		prometheus.NewDesc("isthmus_kubernetes_age_seconds", "Time since a list of the Kubernetes API server was last known to be current; 0 while it is watched.", []string{"list"}, nil),
		prometheus.NewDesc("isthmus_kubernetes_failing", "1 while list and watch requests to the Kubernetes API server fail.", []string{"list"}, nil),
		prometheus.NewDesc("isthmus_kubernetes_objects", "Known objects of the Kubernetes cluster.", []string{"list"}, nil),
		prometheus.NewDesc("isthmus_kubernetes_held", "Objects that the Kubernetes API server did not list again after a lost watch. They stay in force for a while.", []string{"list"}, nil),
		prometheus.NewDesc("isthmus_kubernetes_cache_age_seconds", "Age of the cached objects for a start without the Kubernetes API server; absent without a cache.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.synced, c.age, c.failing, c.objects, c.held, c.cache} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if c.s == nil {
		return
	}
	s := c.s.Status()
	gauge(c.synced, truth(s.Synced))
	for _, l := range s.Lists {
		gauge(c.age, float64(l.AgeMS)/1000, l.Kind)
		gauge(c.failing, truth(l.Failing), l.Kind)
		gauge(c.objects, float64(l.Objects), l.Kind)
		gauge(c.held, float64(l.Held), l.Kind)
	}
	if !s.Cache.Saved.IsZero() {
		gauge(c.cache, time.Since(s.Cache.Saved).Seconds())
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
