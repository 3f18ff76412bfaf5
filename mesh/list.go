package mesh

import (
	"iter"
	"slices"
	"strings"
)

// list is a sorted list that shares memory with its earlier versions: chunks of
// at most maxChunk, so that a change copies one chunk and the list of chunks.
// The zero value is empty; a copy of the struct is a version, as of trie.
type list[V keyed] struct {
	by     *token // owns chunks, not what they hold
	chunks []chunk[V]
	n      int
}

// keyed is what a list sorts its items by.
type keyed interface{ key() string }

type chunk[V keyed] struct {
	by    *token
	items []V // never empty
}

const maxChunk = 256

func (w *Workload) key() string { return w.UID }
func (s *Service) key() string  { return s.Hostname }

// place returns the chunk and the item where key is or belongs.
func (l *list[V]) place(key string) (c, i int, found bool) {
	c, _ = slices.BinarySearchFunc(l.chunks, key, func(c chunk[V], key string) int { return strings.Compare(c.items[0].key(), key) })
	if c == len(l.chunks) || c > 0 && l.chunks[c].items[0].key() != key {
		c-- // the one before begins below key
	}
	if c < 0 {
		return 0, 0, false
	}
	i, found = search(l.chunks[c].items, key)
	return c, i, found
}

func search[V keyed](items []V, key string) (i int, found bool) {
	return slices.BinarySearchFunc(items, key, func(v V, key string) int { return strings.Compare(v.key(), key) })
}

// put adds v, in place of what has its key.
func (l *list[V]) put(by *token, v V) {
	l.own(by)
	c, i, found := l.place(v.key())
	if len(l.chunks) == 0 {
		l.chunks = []chunk[V]{{by: by, items: []V{v}}}
		l.n = 1
		return
	}
	at := l.chunk(by, c)
	if found {
		at.items[i] = v
		return
	}
	at.items = slices.Insert(at.items, i, v)
	l.n++
	if n := len(at.items); n > maxChunk {
		upper := chunk[V]{by: by, items: slices.Clone(at.items[n/2:])}
		clear(at.items[n/2:])
		at.items = at.items[:n/2]
		l.chunks = slices.Insert(l.chunks, c+1, upper)
	}
}

// del removes what has key.
func (l *list[V]) del(by *token, key string) {
	c, i, found := l.place(key)
	if !found {
		return
	}
	l.own(by)
	l.n--
	at := l.chunk(by, c)
	at.items = slices.Delete(at.items, i, i+1)
	if len(at.items) == 0 {
		l.chunks = slices.Delete(l.chunks, c, c+1)
		return
	}
	if c+1 < len(l.chunks) && len(at.items)+len(l.chunks[c+1].items) <= maxChunk/2 {
		at.items = append(at.items, l.chunks[c+1].items...)
		l.chunks = slices.Delete(l.chunks, c+1, c+2)
	}
}

func (l *list[V]) own(by *token) {
	if l.by != by {
		l.by, l.chunks = by, append(make([]chunk[V], 0, len(l.chunks)+1), l.chunks...)
	}
}

// chunk returns the chunk at c, which by owns then; by owns l.chunks.
func (l *list[V]) chunk(by *token, c int) *chunk[V] {
	at := &l.chunks[c]
	if at.by != by {
		at.by, at.items = by, append(make([]V, 0, len(at.items)+1), at.items...)
	}
	return at
}

// all yields every item in order.
func (l *list[V]) all() iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, c := range l.chunks {
			for _, v := range c.items {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// slice returns every item in order, in memory of its own.
func (l *list[V]) slice() []V {
	if l.n == 0 {
		return nil
	}
	return slices.AppendSeq(make([]V, 0, l.n), l.all())
}
