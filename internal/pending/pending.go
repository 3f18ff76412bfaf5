// Package pending bounds the connections whose TLS handshake is unfinished. When the
// bound is exceeded, the source address with the most unfinished handshakes loses its
// oldest one.
//
// A peer that holds handshakes open therefore evicts its own. An address is the largest
// source only if it has at least limit/k handshakes, where k is the number of addresses.
// Its oldest handshake is evicted only after that many newer ones. So if an address opens
// r connections per second, each of its handshakes has limit/(k·r) seconds to finish.
//
// A handshake that waits for this process is not evicted as the oldest: the peer has sent
// bytes that were not read, or its first message was read and has no answer yet. After a
// restart thousands of honest clients connect at once; evicting the oldest would then evict
// each handshake just before its turn. If the oldest handshakes of the largest source all
// wait for this process, the source loses its newest one.
package pending

import (
	"container/heap"
	"container/list"
	"io"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// examined is how many of a source's oldest handshakes are examined for one that waits
// for its peer. It bounds the system calls per eviction.
const examined = 16

// Set holds the unfinished handshakes. Create it with New. Safe for concurrent use.
type Set struct {
	limit int
	waits func(c io.Closer, spoke bool) bool // reports whether c waits for this process

	mu      sync.Mutex
	n       int
	entered uint64 // entries so far
	sources map[netip.Prefix]*source
	largest sourceHeap // the source that loses a handshake next is first
}

// source is one address and its unfinished handshakes.
type source struct {
	from  netip.Prefix
	list  list.List // of *Entry, oldest first
	index int       // in Set.largest
}

// Entry is one unfinished handshake, until Leave.
type Entry struct {
	s      *Set
	c      io.Closer
	of     *source
	at     *list.Element // in of.list; nil after Leave or eviction
	number uint64        // in the order of Enter
	spoke  bool          // a complete first message was read
	work   int           // see Work
}

// New returns a set for at most limit connections.
func New(limit int) *Set {
	return &Set{limit: limit, waits: waitsForUs, sources: map[netip.Prefix]*source{}}
}

// Enter adds c, a connection from the source from. If that exceeds the limit, one entry
// is evicted: its connection is closed. If this is the new entry itself, e is nil and
// the caller closes c.
func (s *Set) Enter(c io.Closer, from netip.Prefix) (e *Entry, evicted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.addLocked(c, from)
	if s.n <= s.limit {
		return e, false
	}
	victim := s.victimLocked()
	s.removeLocked(victim)
	if victim == e {
		return nil, true
	}
	victim.c.Close()
	return e, true
}

func (s *Set) addLocked(c io.Closer, from netip.Prefix) *Entry {
	src := s.sources[from]
	if src == nil {
		src = &source{from: from}
		s.sources[from] = src
	}
	e := &Entry{s: s, c: c, of: src, number: s.entered}
	s.entered++
	s.n++
	e.at = src.list.PushBack(e)
	if src.list.Len() == 1 {
		heap.Push(&s.largest, src)
	} else {
		heap.Fix(&s.largest, src.index)
	}
	return e
}

// victimLocked returns the entry to evict: of the largest source the oldest that waits
// for its peer, otherwise the newest without work, otherwise the newest.
func (s *Set) victimLocked() *Entry {
	entries := &s.largest[0].list
	asked := 0
	for at := entries.Front(); at != nil && asked < examined; at = at.Next() {
		e := at.Value.(*Entry)
		if e.work > 0 {
			continue
		}
		if !s.waits(e.c, e.spoke) {
			return e
		}
		asked++
	}
	for at := entries.Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*Entry); e.work == 0 {
			return e
		}
	}
	return entries.Back().Value.(*Entry)
}

// waitsForUs reports whether the kernel holds received bytes of c that were not read, or
// the peer spoke and nothing was sent to it (Linux 4.19). False if c is no socket.
func waitsForUs(c io.Closer, spoke bool) (waits bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	raw.Control(func(fd uintptr) {
		n, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		if waits = n > 0; !waits && spoke {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			waits = err == nil && info.Bytes_sent == 0
		}
	})
	return waits
}

// FirstMessage records that a complete first message of the peer was read.
func (e *Entry) FirstMessage() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.spoke = true
}

// Work records that this process works for the peer of e until done is called. An entry
// with work is evicted only if all entries of its source have work.
func (e *Entry) Work() (done func()) {
	e.add(1)
	return func() { e.add(-1) }
}

func (e *Entry) add(work int) {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	e.work += work
}

// Leave removes e from the set. It does nothing if e has left or was evicted.
func (e *Entry) Leave() {
	e.s.mu.Lock()
	defer e.s.mu.Unlock()
	if e.at != nil {
		e.s.removeLocked(e)
	}
}

func (s *Set) removeLocked(e *Entry) {
	src := e.of
	src.list.Remove(e.at)
	e.at = nil
	s.n--
	if src.list.Len() == 0 {
		heap.Remove(&s.largest, src.index)
		delete(s.sources, src.from)
		return
	}
	heap.Fix(&s.largest, src.index)
}

// Len returns the number of unfinished handshakes.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// sourceHeap implements heap.Interface. The source with the most entries is first; of
// several the one with the oldest entry. A source in the heap has an entry, except while
// removeLocked removes it.
type sourceHeap []*source

func (h sourceHeap) Len() int { return len(h) }

func (h sourceHeap) Less(i, j int) bool {
	if a, b := h[i].list.Len(), h[j].list.Len(); a != b {
		return a > b
	}
	return h[i].oldest() < h[j].oldest()
}

func (s *source) oldest() uint64 {
	if front := s.list.Front(); front != nil {
		return front.Value.(*Entry).number
	}
	return 0
}

func (h sourceHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *sourceHeap) Push(x any) {
	src := x.(*source)
	src.index = len(*h)
	*h = append(*h, src)
}

func (h *sourceHeap) Pop() any {
	old := *h
	src := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return src
}
