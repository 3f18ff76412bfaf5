package balance

import "math"

// Turn is when a candidate is due in [Index.PickInTurn]. The zero value has its place
// at the beginning.
type Turn struct {
	due    float64 // by the index's clock; without a weight the place in a round, in [0, 1)
	weight float64 // that due was reckoned with; zero: none yet
	out    bool    // it has no weight now
}

// NewTurn returns the turn of a candidate that never had one, at a place in the round,
// which is taken modulo 1. Candidates of weight 1 take turns in the order of their places
// for ever, also those that come later.
func NewTurn(place float64) Turn { return Turn{due: frac(place)} }

// PlaceInRound returns the place of the candidate named key with giver k of turns (0, 1,
// …). Givers 0 and 1 go through the same round from its two ends: so nobody has had more
// than one turn more of the two than anybody else, whatever part either has given and
// though neither knows of the other. 2 and 3 do the same from another beginning, and so on.
func PlaceInRound(key uint64, k int) float64 {
	place := frac(unit(mix(key)) + unit(uint64(k/2)*stepU))
	if k%2 == 1 {
		return min(1-place, math.Nextafter(1, 0))
	}
	return place
}

func frac(x float64) float64 { return x - math.Floor(x) }

// become reckons with another weight: what is left of the turn takes longer or shorter.
// Who comes back has missed whole turns, and keeps its place.
func (t *Turn) become(weight, now float64) {
	if !(weight > 0 && weight <= math.MaxFloat64) {
		t.out = true
		return
	}
	left := (t.due - now) * t.weight // in turns of its own
	switch {
	case t.weight == 0:
		left = frac(t.due - now*weight)
	case t.out && left < 0:
		left = frac(left)
	case !t.out && t.weight == weight:
		return
	}
	t.due, t.weight, t.out = now+left/weight, weight, false
}

// order is a tournament of the slots of one bucket: whoever is due first wins.
type order struct {
	leaves int     // power of two; zero: nobody takes turns
	node   []int32 // slot, or -1; node[1] is the winner
}

func (o *order) reset(n int) {
	o.leaves = 1
	for o.leaves < n {
		o.leaves *= 2
	}
	if cap(o.node) < 2*o.leaves {
		o.node = make([]int32, 2*o.leaves)
	}
	o.node = o.node[:2*o.leaves]
	for i := range o.node {
		o.node[i] = -1
	}
}

// TakeTurns has PickInTurn go by the turns that turn gives the candidates, until the
// next Reset. The clock goes on, so that [Index.Turn] may be given again.
func (x *Index) TakeTurns(turn func(i int) Turn) {
	for i := range x.at {
		e := &x.at[i]
		e.turn = turn(i)
		e.turn.become(e.standing(), x.clock)
	}
	for b := range x.buckets {
		k := &x.buckets[b]
		k.order.reset(len(k.members))
		for slot, i := range k.members {
			if x.at[i].weight() > 0 {
				k.order.node[k.order.leaves+slot] = int32(slot)
			}
		}
		for n := k.order.leaves - 1; n > 0; n-- {
			k.order.node[n] = x.sooner(k, k.order.node[2*n], k.order.node[2*n+1])
		}
	}
}

// Turn returns that of candidate i.
func (x *Index) Turn(i int) Turn { return x.at[i].turn }

func (x *Index) sooner(k *bucketIndex, a, b int32) int32 {
	if b < 0 || a >= 0 && x.at[k.members[a]].turn.due <= x.at[k.members[b]].turn.due {
		return a
	}
	return b
}

// reorder takes in that candidate i is due at another time, or takes part or not.
func (x *Index) reorder(i int) {
	e := &x.at[i]
	k := &x.buckets[e.bucket]
	if k.order.leaves == 0 {
		return
	}
	n := k.order.leaves + int(e.slot)
	k.order.node[n] = -1
	if e.weight() > 0 {
		k.order.node[n] = e.slot
	}
	for n /= 2; n > 0; n /= 2 {
		k.order.node[n] = x.sooner(k, k.order.node[2*n], k.order.node[2*n+1])
	}
}

// PickInTurn chooses among the same candidates as Pick: whoever is due first, or, by v,
// any other that is clearly less loaded, and then the first has lost its turn. In the end
// each has turns by weight, and nobody a second one before everybody had about one. The
// turn is not over until Took: without that the next choice is the same.
func (x *Index) PickInTurn(v float64, loads Loads) (index int, ok bool) {
	best, total, first := -1, 0.0, -1
	for b := range x.buckets {
		k := &x.buckets[b]
		total += k.weights.total()
		if k.order.leaves > 0 && k.order.node[1] >= 0 {
			if i := int(k.members[k.order.node[1]]); first < 0 || x.at[i].turn.due < x.at[first].turn.due {
				first = i
			}
		}
		if k.solid > 0 {
			best = b
			break
		}
	}
	if best < 0 || first < 0 {
		return 0, false
	}
	if j := x.draw(best, v*total); j != first && clearly*x.pressure(j, loads) < x.pressure(first, loads) {
		x.Took(first)
		return j, true
	}
	return first, true
}

// Took ends the turn of candidate i. It is due again when everybody of its weight had a
// turn; of turns that it has missed, masked or in a bucket that nobody asked for, nothing
// is made good.
func (x *Index) Took(i int) {
	t := &x.at[i].turn
	if t.weight == 0 || t.out {
		return
	}
	was := t.due
	t.due += max(1, math.Ceil((x.clock-was)*t.weight)) / t.weight
	x.clock = max(x.clock, was)
	x.reorder(i)
}
