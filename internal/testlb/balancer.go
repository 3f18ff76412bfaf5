// Package testlb is a load balancer of TCP connections, and of UDP, for tests: one or more addresses
// that stand for several backends, as those that a cloud puts before a Service. It moves
// connections whole and looks into none.
package testlb

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"
	"syscall"
)

// Policy is how a backend is chosen for a connection.
type Policy string

const (
	RoundRobin       Policy = "round robin"
	LeastConnections Policy = "least connections"
	BySource         Policy = "by source" // the same backend for all that one client address begins
)

// Balancer chooses among backends. The zero value has none, and takes turns. Safe for
// concurrent use.
type Balancer struct {
	Policy Policy

	mu       sync.Mutex
	backends []string // in the order of their turns
	cut      map[string]bool
	open     map[string]int
	given    map[string]int // connections, ever
	from     map[netip.Addr]int
	next     int
}

// Set says which the backends are, ip:port each.
func (b *Balancer) Set(backends ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = slices.Clone(backends)
}

// Cut has new connections that are given to a backend refused, without the balancer
// taking it out: as one does that has not noticed yet.
func (b *Balancer) Cut(backend string, cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cut == nil {
		b.cut = map[string]bool{}
	}
	b.cut[backend] = cut
}

// Given is how many connections a backend was given.
func (b *Balancer) Given(backend string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.given[backend]
}

// From is how many connections source has begun.
func (b *Balancer) From(source netip.Addr) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.from[source.Unmap()]
}

// Pick chooses the backend of a connection from source. ended is called when the
// connection is over.
func (b *Balancer) Pick(source netip.Addr) (backend string, ended func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.backends) == 0 {
		return "", nil, fmt.Errorf("testlb: no backends: %w", syscall.ECONNREFUSED)
	}
	switch b.Policy {
	case LeastConnections:
		backend = slices.MinFunc(b.backends, func(x, y string) int { return b.open[x] - b.open[y] })
	case BySource:
		h := fnv.New32a()
		h.Write(source.AsSlice())
		backend = b.backends[h.Sum32()%uint32(len(b.backends))]
	default:
		backend = b.backends[b.next%len(b.backends)]
		b.next++
	}
	if b.given == nil {
		b.given, b.open, b.from = map[string]int{}, map[string]int{}, map[netip.Addr]int{}
	}
	b.given[backend]++
	b.from[source.Unmap()]++
	if b.cut[backend] {
		return backend, nil, fmt.Errorf("testlb: backend %s is cut off: %w", backend, syscall.ECONNREFUSED)
	}
	b.open[backend]++
	var once sync.Once
	return backend, func() {
		once.Do(func() {
			b.mu.Lock()
			b.open[backend]--
			b.mu.Unlock()
		})
	}, nil
}
