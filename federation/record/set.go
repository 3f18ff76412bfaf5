package record

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
)

const (
	// Buckets is the number of leaves of the hash tree.
	Buckets = 256
	// HashBytes is the length of a bucket's hash. To pass off other records
	// under a signed root takes a second preimage of 128 bits.
	HashBytes = 16
)

// ErrTooLarge is a set or a bucket beyond its limit in bytes or in number.
var ErrTooLarge = errors.New("too large")

// Hashes are the hashes of all buckets.
type Hashes [Buckets][HashBytes]byte

// Root is the hash of a whole set.
type Root [sha256.Size]byte

// Root returns the root of the tree whose leaves are h.
func (h *Hashes) Root() Root {
	s := sha256.New()
	s.Write([]byte("isthmus-records/1\x00"))
	for i := range h {
		s.Write(h[i][:])
	}
	return Root(s.Sum(nil))
}

// Bytes returns h as it travels.
func (h *Hashes) Bytes() []byte {
	b := make([]byte, 0, Buckets*HashBytes)
	for i := range h {
		b = append(b, h[i][:]...)
	}
	return b
}

// ParseHashes reads what Bytes has written; no bytes are those of an empty set.
func ParseHashes(b []byte) (*Hashes, error) {
	h := &Hashes{}
	if len(b) == 0 {
		return h, nil
	}
	if len(b) != Buckets*HashBytes {
		return nil, &InvalidError{"hashes", len(b), fmt.Sprintf("want none or %d bytes", Buckets*HashBytes)}
	}
	for i := range h {
		copy(h[i][:], b[i*HashBytes:])
	}
	return h, nil
}

// Set is all records of one instance. Which bucket a record is in depends on
// the instance, which is drawn at random, so that nobody can choose names that
// fill one bucket. Not safe for concurrent use.
type Set struct {
	instance Instance
	maxLen   int
	maxBytes int

	entries map[string]*leaf
	buckets [Buckets]bucket
	hashes  Hashes
	root    Root
	dirty   bool // root is not that of hashes
	bytes   int
}

type leaf struct {
	Entry
	hash [32]byte
}

// bucket has its leaves sorted by key.
type bucket struct {
	leaves []*leaf
	bytes  int
}

// NewSet returns an empty set that refuses to grow beyond maxLen records and
// maxBytes bytes; zero means no limit.
func NewSet(i Instance, maxLen, maxBytes int) *Set {
	return &Set{instance: i, maxLen: maxLen, maxBytes: maxBytes, entries: map[string]*leaf{}, dirty: true}
}

// Len returns the number of records.
func (s *Set) Len() int { return len(s.entries) }

// Bytes returns the sum of the entries' sizes.
func (s *Set) Bytes() int { return s.bytes }

// Get returns the entry of a key. Its body must not be changed.
func (s *Set) Get(key string) (Entry, bool) {
	l := s.entries[key]
	if l == nil {
		return Entry{}, false
	}
	return l.Entry, true
}

// All yields every entry in the order of buckets and keys.
func (s *Set) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for i := range s.buckets {
			for _, l := range s.buckets[i].leaves {
				if !yield(l.Entry) {
					return
				}
			}
		}
	}
}

// BucketOf returns the bucket of a key.
func (s *Set) BucketOf(key string) int {
	h := sha256.New()
	h.Write(s.instance[:])
	h.Write([]byte(key))
	var sum [32]byte
	return int(h.Sum(sum[:0])[0])
}

// Put adds e or replaces the entry of its key. The error is [ErrTooLarge] or an
// [*InvalidError]; s is then as before.
func (s *Set) Put(e Entry) error {
	if err := e.Check(); err != nil {
		return err
	}
	i := s.BucketOf(e.Key)
	b := &s.buckets[i]
	old := s.entries[e.Key]
	grows := e.Size()
	if old != nil {
		grows -= old.Size()
	}
	switch {
	case old == nil && s.maxLen > 0 && len(s.entries) >= s.maxLen:
		return fmt.Errorf("set of %d records, limit %d: %w", len(s.entries)+1, s.maxLen, ErrTooLarge)
	case grows > 0 && s.maxBytes > 0 && s.bytes+grows > s.maxBytes:
		return fmt.Errorf("set of %d bytes, limit %d: %w", s.bytes+grows, s.maxBytes, ErrTooLarge)
	case grows > 0 && b.bytes+grows > MaxBucketBytes:
		return fmt.Errorf("bucket of %d bytes, limit %d: %w", b.bytes+grows, MaxBucketBytes, ErrTooLarge)
	}
	l := &leaf{Entry: e, hash: e.hash()}
	at, found := b.find(e.Key)
	if found {
		b.leaves[at] = l
	} else {
		b.leaves = slices.Insert(b.leaves, at, l)
	}
	s.entries[e.Key] = l
	b.bytes += grows
	s.bytes += grows
	s.rehash(i)
	return nil
}

// Remove takes the entry of a key out; it says whether there was one.
func (s *Set) Remove(key string) bool {
	l := s.entries[key]
	if l == nil {
		return false
	}
	i := s.BucketOf(key)
	b := &s.buckets[i]
	at, _ := b.find(key)
	b.leaves = slices.Delete(b.leaves, at, at+1)
	b.bytes -= l.Size()
	s.bytes -= l.Size()
	delete(s.entries, key)
	s.rehash(i)
	return true
}

func (b *bucket) find(key string) (int, bool) {
	return slices.BinarySearchFunc(b.leaves, key, func(l *leaf, key string) int { return strings.Compare(l.Key, key) })
}

func (s *Set) rehash(i int) {
	s.hashes[i] = hashLeaves(s.buckets[i].leaves)
	s.dirty = true
}

// hashLeaves is zero for none.
func hashLeaves(leaves []*leaf) (out [HashBytes]byte) {
	if len(leaves) == 0 {
		return out
	}
	h := sha256.New()
	for _, l := range leaves {
		h.Write(l.hash[:])
	}
	var sum [32]byte
	copy(out[:], h.Sum(sum[:0]))
	return out
}

// Hashes returns the hashes of all buckets; a copy.
func (s *Set) Hashes() Hashes { return s.hashes }

// Root returns the root of the hash tree.
func (s *Set) Root() Root {
	if s.dirty {
		s.root, s.dirty = s.hashes.Root(), false
	}
	return s.root
}

// Bucket returns the entries of bucket i, sorted by key.
func (s *Set) Bucket(i int) []Entry {
	out := make([]Entry, len(s.buckets[i].leaves))
	for j, l := range s.buckets[i].leaves {
		out[j] = l.Entry
	}
	return out
}

// Replace makes entries the whole of bucket i, if they hash to want. It returns
// the keys whose entry is new, another or gone. The error is an
// [*InvalidError] or [ErrTooLarge]; s is then as before.
func (s *Set) Replace(i int, entries []Entry, want [HashBytes]byte) (changed []string, err error) {
	leaves := make([]*leaf, len(entries))
	size := 0
	for j, e := range entries {
		if err := e.Check(); err != nil {
			return nil, err
		}
		if j > 0 && entries[j-1].Key >= e.Key || s.BucketOf(e.Key) != i {
			return nil, &InvalidError{"bucket", i, "want its own keys, sorted, each once"}
		}
		leaves[j] = &leaf{Entry: e, hash: e.hash()}
		size += e.Size()
	}
	b := &s.buckets[i]
	switch grows := size - b.bytes; {
	case hashLeaves(leaves) != want:
		return nil, &InvalidError{"bucket", i, "does not fit its hash"}
	case size > MaxBucketBytes:
		return nil, fmt.Errorf("bucket of %d bytes, limit %d: %w", size, MaxBucketBytes, ErrTooLarge)
	case s.maxBytes > 0 && grows > 0 && s.bytes+grows > s.maxBytes:
		return nil, fmt.Errorf("set of %d bytes, limit %d: %w", s.bytes+grows, s.maxBytes, ErrTooLarge)
	case s.maxLen > 0 && len(s.entries)-len(b.leaves)+len(leaves) > max(s.maxLen, len(s.entries)):
		return nil, fmt.Errorf("set of %d records, limit %d: %w", len(s.entries)-len(b.leaves)+len(leaves), s.maxLen, ErrTooLarge)
	}
	changed = differing(b.leaves, leaves)
	for _, l := range b.leaves {
		delete(s.entries, l.Key)
	}
	for _, l := range leaves {
		s.entries[l.Key] = l
	}
	s.bytes += size - b.bytes
	b.leaves, b.bytes = leaves, size
	s.hashes[i], s.dirty = want, true
	return changed, nil
}

// differing returns the keys in which two sorted buckets differ.
func differing(a, b []*leaf) (keys []string) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Key < b[0].Key:
			keys, a = append(keys, a[0].Key), a[1:]
		case len(a) == 0 || b[0].Key < a[0].Key:
			keys, b = append(keys, b[0].Key), b[1:]
		default:
			if a[0].hash != b[0].hash {
				keys = append(keys, a[0].Key)
			}
			a, b = a[1:], b[1:]
		}
	}
	return keys
}
