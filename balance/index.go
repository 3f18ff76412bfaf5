package balance

import "math"

// Index is Pick for many candidates: a change of one costs and a choice takes
// time in proportion to the logarithm of their number, and neither allocates. Its Pick
// gives the choice that [Pick] gives among candidates sorted by falling rank; by
// [Index.TakeTurns] and [Index.PickInTurn] they take turns instead.
//
// Candidate.Load and Candidate.Avoid are not looked at: loads are an argument of
// each choice, and whoever is to be avoided by one choice is masked for its time.
// The zero value is empty. Not safe for concurrent use.
type Index struct {
	at      []entry
	buckets []bucketIndex // by falling rank
	sizes   sums          // by candidate: chances when nobody is healthy
	masked  []int32
	clock   float64 // of turns: how many each candidate of weight 1 has had
}

type entry struct {
	c      Candidate
	bucket int32
	slot   int32 // within the bucket
	masked bool
	turn   Turn
}

type bucketIndex struct {
	rank    int
	members []int32 // candidate by slot
	weights sums    // by slot: of those that are usable
	order   order   // of the same, by when it is their turn
	solid   int     // how many are healthy
}

// Loads answers how many connections a candidate has.
type Loads interface{ Load(i int) float64 }

// Reset makes x the index of c, which it copies, with nobody masked.
func (x *Index) Reset(c []Candidate) {
	x.at, x.buckets, x.masked = x.at[:0], x.buckets[:0], x.masked[:0]
	byRank := map[int]int32{}
	for i := range c {
		if _, known := byRank[c[i].Rank]; !known {
			byRank[c[i].Rank] = 0
			x.buckets = append(x.buckets, bucketIndex{rank: c[i].Rank})
		}
	}
	sortBuckets(x.buckets)
	for b := range x.buckets {
		byRank[x.buckets[b].rank] = int32(b)
	}
	for i := range c {
		b := byRank[c[i].Rank]
		x.at = append(x.at, entry{c: c[i], bucket: b, slot: int32(len(x.buckets[b].members))})
		x.buckets[b].members = append(x.buckets[b].members, int32(i))
	}
	x.sizes.reset(len(c), func(i int) float64 { return x.at[i].size() })
	for b := range x.buckets {
		k := &x.buckets[b]
		k.weights.reset(len(k.members), func(slot int) float64 { return x.at[k.members[slot]].weight() })
		for _, i := range k.members {
			k.solid += x.at[i].solid()
		}
	}
}

func sortBuckets(b []bucketIndex) {
	for i := range b { // a handful
		for j := i; j > 0 && b[j].rank > b[j-1].rank; j-- {
			b[j], b[j-1] = b[j-1], b[j]
		}
	}
}

// Len is the number of candidates.
func (x *Index) Len() int { return len(x.at) }

// At returns candidate i as it was last set.
func (x *Index) At(i int) Candidate { return x.at[i].c }

// Set replaces candidate i by c, whose rank must be the same: ranks change with
// the plan alone, which calls for Reset.
func (x *Index) Set(i int, c Candidate) {
	c.Rank = x.at[i].c.Rank
	if x.at[i].c != c {
		x.change(i, func(e *entry) { e.c = c })
	}
}

// Mask leaves i out of every choice until Unmask.
func (x *Index) Mask(i int) {
	if !x.at[i].masked {
		x.change(i, func(e *entry) { e.masked = true })
		x.masked = append(x.masked, int32(i))
	}
}

// Unmask ends every Mask.
func (x *Index) Unmask() {
	for _, i := range x.masked {
		x.change(int(i), func(e *entry) { e.masked = false })
	}
	x.masked = x.masked[:0]
}

// Any reports whether anybody who is not masked is usable, if only faintly.
func (x *Index) Any() bool {
	for b := range x.buckets {
		if x.buckets[b].weights.total() > 0 {
			return true
		}
	}
	return false
}

// Masked is how many are masked.
func (x *Index) Masked() int { return len(x.masked) }

// Well reports whether candidate i is healthy, masked or not.
func (x *Index) Well(i int) bool {
	c := &x.at[i].c
	return !c.Drained && !c.Faint && c.usable(false)
}

func (x *Index) change(i int, how func(*entry)) {
	e := &x.at[i]
	b := &x.buckets[e.bucket]
	b.solid -= e.solid()
	how(e)
	b.solid += e.solid()
	b.weights.set(int(e.slot), e.weight())
	if b.order.leaves > 0 {
		e.turn.become(e.standing(), x.clock)
		x.reorder(i)
	}
	x.sizes.set(i, e.size())
}

func (e *entry) out() bool { return e.masked || e.c.Drained }

func (e *entry) solid() int {
	if !e.out() && !e.c.Faint && e.c.usable(false) {
		return 1
	}
	return 0
}

func (e *entry) weight() float64 {
	if e.masked {
		return 0
	}
	return e.standing()
}

// standing is its weight, masked or not.
func (e *entry) standing() float64 {
	if e.c.Drained || !e.c.usable(false) {
		return 0
	}
	return e.c.Weight
}

func (e *entry) size() float64 {
	if e.out() {
		return 0
	}
	return e.c.size()
}

// Best returns the highest rank with a healthy candidate that is not masked.
func (x *Index) Best() (rank int, ok bool) {
	for b := range x.buckets {
		if x.buckets[b].solid > 0 {
			return x.buckets[b].rank, true
		}
	}
	return 0, false
}

// Pick chooses among the healthy candidates of the best rank that are not masked:
// see [Pick]. ok is false if there is none.
func (x *Index) Pick(u, v float64, loads Loads) (index int, ok bool) {
	best, total := -1, 0.0
	for b := range x.buckets { // whoever is usable in a better bucket is faint
		total += x.buckets[b].weights.total()
		if x.buckets[b].solid > 0 {
			best = b
			break
		}
	}
	if best < 0 {
		return 0, false
	}
	i, j := x.draw(best, u*total), x.draw(best, v*total)
	if i != j && clearly*x.pressure(j, loads) < x.pressure(i, loads) {
		return j, true
	}
	return i, true
}

// PickDazed chooses among all that are not masked, by size alone: see [Pick].
func (x *Index) PickDazed(u float64) (index int, ok bool) {
	if x.sizes.total() <= 0 {
		return 0, false
	}
	return x.sizes.find(u * x.sizes.total()), true
}

// Share returns the part of the choices that go to candidate i while nobody is
// busy, in [0, 1]: its weight among those that take part.
func (x *Index) Share(i int) float64 {
	total := 0.0
	for b := range x.buckets {
		total += x.buckets[b].weights.total()
		if x.buckets[b].solid == 0 {
			continue
		}
		if int(x.at[i].bucket) > b {
			return 0
		}
		return x.at[i].weight() / total
	}
	if total = x.sizes.total(); total > 0 {
		return x.at[i].size() / total
	}
	return 0
}

// draw returns the candidate at the sum of weights s in the buckets up to best.
func (x *Index) draw(best int, s float64) int {
	last := best
	for b := range best + 1 {
		w := &x.buckets[b].weights
		if w.total() > 0 {
			last = b
			if s < w.total() {
				break
			}
		}
		s -= w.total()
	}
	k := &x.buckets[last]
	return int(k.members[k.weights.find(s)])
}

func (x *Index) pressure(i int, loads Loads) float64 {
	return max(1, loads.Load(i)/x.at[i].c.Weight)
}

// sums is a binary tree over n numbers that are not negative: each inner node is
// the sum of its two children, so that rounding does not add up over time.
type sums struct {
	leaves int // power of two
	node   []float64
}

func (s *sums) reset(n int, value func(int) float64) {
	s.leaves = 1
	for s.leaves < n {
		s.leaves *= 2
	}
	if cap(s.node) < 2*s.leaves {
		s.node = make([]float64, 2*s.leaves)
	}
	s.node = s.node[:2*s.leaves]
	clear(s.node)
	for i := range n {
		s.node[s.leaves+i] = value(i)
	}
	for i := s.leaves - 1; i > 0; i-- {
		s.node[i] = s.node[2*i] + s.node[2*i+1]
	}
}

func (s *sums) set(i int, value float64) {
	i += s.leaves
	if s.node[i] == value {
		return
	}
	s.node[i] = value
	for i /= 2; i > 0; i /= 2 {
		s.node[i] = s.node[2*i] + s.node[2*i+1]
	}
}

func (s *sums) total() float64 {
	if len(s.node) < 2 {
		return 0
	}
	return min(s.node[1], math.MaxFloat64)
}

// find returns the first i at which the sum up to and including i exceeds x; of
// those that are not zero the last, if rounding lets x exceed them all.
func (s *sums) find(x float64) int {
	i := 1
	for i < s.leaves {
		left, right := s.node[2*i], s.node[2*i+1]
		if x < left || right == 0 {
			i *= 2
			continue
		}
		x -= left
		i = 2*i + 1
	}
	return i - s.leaves
}
