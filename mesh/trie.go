package mesh

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
)

// trie is a map that shares memory with its earlier versions: a hash array
// mapped trie (Bagwell 2001). The zero value is empty. A copy of the struct is a
// version: put and del leave every other one as it was, and copy only the
// branches on the way that the token given does not own yet.
type trie[K hashed, V any] struct {
	root *branch[K, V]
	n    int
}

// hashed is a key with a hash of its own. maphash.Comparable would allocate for
// a netip.Addr.
type hashed interface {
	comparable
	hash() uint64
}

// token owns what one Edit has copied already. It has a size, so that no two
// have one address.
type token struct{ _ byte }

// levelBits is how much of the hash one level takes: 32 slots to a branch.
const levelBits = 5

// lastLevel is where the hash is used up; a branch there is searched in order.
const lastLevel = 60

type branch[K hashed, V any] struct {
	by    *token
	mask  uint32 // which of the 32 slots are there
	slots []slot[K, V]
}

// slot is one entry or, if below is set, a branch.
type slot[K hashed, V any] struct {
	hash  uint64
	key   K
	val   V
	below *branch[K, V]
}

// get returns the value of k, or the zero value. It does not allocate.
func (t *trie[K, V]) get(k K) (v V) {
	h := k.hash()
	b := t.root
	for shift := uint(0); b != nil; shift += levelBits {
		i, ok := b.find(h, k, shift)
		if !ok {
			return v
		}
		s := &b.slots[i]
		if s.below == nil {
			if s.hash == h && s.key == k {
				return s.val
			}
			return v
		}
		b = s.below
	}
	return v
}

// find returns the place of the slot for h, and whether there is one.
func (b *branch[K, V]) find(h uint64, k K, shift uint) (int, bool) {
	if shift >= lastLevel {
		for i := range b.slots {
			if b.slots[i].key == k {
				return i, true
			}
		}
		return len(b.slots), false
	}
	bit := uint32(1) << (h >> shift & (1<<levelBits - 1))
	return bits.OnesCount32(b.mask & (bit - 1)), b.mask&bit != 0
}

func (t *trie[K, V]) put(by *token, k K, v V) {
	if t.root == nil {
		t.root = &branch[K, V]{by: by}
	}
	var added bool
	t.root, added = t.root.put(by, slot[K, V]{hash: k.hash(), key: k, val: v}, 0)
	if added {
		t.n++
	}
}

func (b *branch[K, V]) put(by *token, s slot[K, V], shift uint) (_ *branch[K, V], added bool) {
	b = b.own(by)
	i, ok := b.find(s.hash, s.key, shift)
	if !ok {
		b.slots = slices.Insert(b.slots, i, s)
		b.mask |= bitOf(s.hash, shift)
		return b, true
	}
	at := &b.slots[i]
	switch {
	case at.below != nil:
		at.below, added = at.below.put(by, s, shift+levelBits)
	case at.hash == s.hash && at.key == s.key:
		at.val = s.val
	default:
		below := &branch[K, V]{by: by}
		below.put(by, *at, shift+levelBits)
		below.put(by, s, shift+levelBits)
		*at, added = slot[K, V]{below: below}, true
	}
	return b, added
}

func (t *trie[K, V]) del(by *token, k K) {
	if t.root == nil {
		return
	}
	root, gone := t.root.del(by, k.hash(), k, 0)
	if gone {
		t.root = root
		t.n--
	}
}

// del copies nothing if k is not there.
func (b *branch[K, V]) del(by *token, h uint64, k K, shift uint) (_ *branch[K, V], gone bool) {
	i, ok := b.find(h, k, shift)
	if !ok {
		return b, false
	}
	s := b.slots[i]
	if s.below == nil {
		if s.hash != h || s.key != k {
			return b, false
		}
		b = b.own(by)
		b.slots = slices.Delete(b.slots, i, i+1)
		b.mask &^= bitOf(h, shift)
		return b, true
	}
	below, gone := s.below.del(by, h, k, shift+levelBits)
	if !gone {
		return b, false
	}
	b = b.own(by)
	switch {
	case len(below.slots) == 0:
		b.slots = slices.Delete(b.slots, i, i+1)
		b.mask &^= bitOf(h, shift)
	case len(below.slots) == 1 && below.slots[0].below == nil:
		b.slots[i] = below.slots[0]
	default:
		b.slots[i].below = below
	}
	return b, true
}

// own returns b itself if by owns it, else a copy that by owns.
func (b *branch[K, V]) own(by *token) *branch[K, V] {
	if b.by == by {
		return b
	}
	return &branch[K, V]{by: by, mask: b.mask, slots: append(make([]slot[K, V], 0, len(b.slots)+1), b.slots...)}
}

func bitOf(h uint64, shift uint) uint32 {
	if shift >= lastLevel {
		return 0
	}
	return 1 << (h >> shift & (1<<levelBits - 1))
}

// all yields every entry, in no order.
func (t *trie[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if t.root != nil {
			t.root.walk(yield)
		}
	}
}

func (b *branch[K, V]) walk(yield func(K, V) bool) bool {
	for i := range b.slots {
		s := &b.slots[i]
		if s.below != nil {
			if !s.below.walk(yield) {
				return false
			}
		} else if !yield(s.key, s.val) {
			return false
		}
	}
	return true
}

// The keys of the indexes.

type textKey string // a UID, or a host name in lower case

type addrKey struct {
	network string
	addr    netip.Addr
}

type vipKey struct{ addr netip.Addr }

type nodeKey struct{ network, node string }

// seed is drawn at the start of the process: names that collide in one collide
// in no other.
var seed = maphash.MakeSeed()

func (k textKey) hash() uint64 { return maphash.String(seed, string(k)) }
func (k addrKey) hash() uint64 { return mix(maphash.String(seed, k.network), hashAddr(k.addr)) }
func (k vipKey) hash() uint64  { return hashAddr(k.addr) }
func (k nodeKey) hash() uint64 {
	return mix(maphash.String(seed, k.network), maphash.String(seed, k.node))
}
func (id EndpointID) hash() uint64 { return mix(uint64(id), 0) }

func hashAddr(a netip.Addr) uint64 {
	b := a.As16()
	return maphash.Bytes(seed, b[:])
}

func mix(a, b uint64) uint64 {
	var buf [16]byte
	binary.LittleEndian.PutUint64(buf[:8], a)
	binary.LittleEndian.PutUint64(buf[8:], b)
	return maphash.Bytes(seed, buf[:])
}
