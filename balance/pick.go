package balance

import "math"

// Candidate is one thing to choose: a pod, or another network's whole share of
// a service.
type Candidate struct {
	// Weight is its share before load: capacity × health. A candidate without a
	// positive, finite weight is taken for one that is not usable.
	Weight float64
	// Size is what it counts as when nobody is healthy: its capacity, whatever its
	// health. One that is not a positive, finite number counts as 1.
	Size   float64
	Load   float64 // open connections
	Rank   int     // bucket; higher is preferred
	Usable bool    // not ejected
	// Faint says that it is usable, but fails so often that it keeps only a
	// trickle. A bucket of faint candidates alone counts as empty; they stay
	// in the draw beside the next bucket, at their weight, to be seen recover.
	Faint   bool
	Drained bool // never chosen: not ready, terminating, told to drain, tried
	Avoid   bool // advisory: not chosen while any other healthy candidate exists
}

// Pick chooses among c with two draws from [0, 1). The bucket is the highest
// Rank that has somebody healthy (usable, not faint, not drained); inside it two
// weighted choices are made, and the second wins only if it is less loaded.
// Loads up to one connection per unit of weight count as equal, so that an idle
// service is shared strictly by weight.
//
// If only avoided candidates are healthy, avoid is ignored. If nobody is
// healthy in any bucket, the choice is dazed: everybody that is not drained has
// a chance by size, whatever rank, weight and load, avoided ones only if there
// is nobody else: another network's share of a service is as many as it stands
// for. Loads do not count there because what refuses everything has none. ok is
// false if everybody is drained or c is empty.
//
// It looks at every candidate, some of them twice: of many, see [Index].
func Pick(c []Candidate, u, v float64) (index int, dazed, ok bool) {
	for _, heedAvoid := range [...]bool{true, false} {
		if rank, any := bucket(c, heedAvoid); any {
			return pickIn(c, rank, heedAvoid, u, v), false, true
		}
	}
	for _, heedAvoid := range [...]bool{true, false} {
		if i, any := pickDazed(c, heedAvoid, u); any {
			return i, true, true
		}
	}
	return 0, false, false
}

// bucket returns the highest rank with a healthy candidate in it.
func bucket(c []Candidate, heedAvoid bool) (rank int, ok bool) {
	for i := range c {
		if x := &c[i]; !x.Faint && x.usable(heedAvoid) && (!ok || x.Rank > rank) {
			rank, ok = x.Rank, true
		}
	}
	return rank, ok
}

func (x *Candidate) usable(heedAvoid bool) bool {
	return x.Usable && !x.Drained && !(heedAvoid && x.Avoid) && x.Weight > 0 && x.Weight <= math.MaxFloat64
}

// in reports whether x takes part in the draw of the bucket rank: its own
// members, and the faint ones of better buckets.
func (x *Candidate) in(rank int, heedAvoid bool) bool {
	return (x.Rank == rank || x.Faint && x.Rank > rank) && x.usable(heedAvoid)
}

func pickIn(c []Candidate, rank int, heedAvoid bool, u, v float64) int {
	total := 0.0
	for i := range c {
		if c[i].in(rank, heedAvoid) {
			total += c[i].Weight
		}
	}
	a, b := -1, -1
	last, sum := 0, 0.0
	for i := range c {
		if !c[i].in(rank, heedAvoid) {
			continue
		}
		last, sum = i, sum+c[i].Weight
		if a < 0 && u*total < sum {
			a = i
		}
		if b < 0 && v*total < sum {
			b = i
		}
		if a >= 0 && b >= 0 {
			break
		}
	}
	if a < 0 { // rounding: the sum ended a hair below u·total
		a = last
	}
	if b < 0 {
		b = last
	}
	if clearly*c[b].pressure() < c[a].pressure() {
		return b
	}
	return a
}

// clearly is how many times more loaded the first draw must be before the
// second is taken instead. Less is the noise of connections that come and go,
// and of weights that have just changed under connections that stay: following
// it would bend the shares of new connections away from the weights.
const clearly = 1.5

// pressure is the load per unit of weight, and at least 1.
func (x *Candidate) pressure() float64 { return max(1, x.Load/x.Weight) }

func pickDazed(c []Candidate, heedAvoid bool, u float64) (index int, ok bool) {
	total := 0.0
	for i := range c {
		if !c[i].Drained && !(heedAvoid && c[i].Avoid) {
			total += c[i].size()
		}
	}
	last, sum := -1, 0.0
	for i := range c {
		if c[i].Drained || heedAvoid && c[i].Avoid {
			continue
		}
		last, sum = i, sum+c[i].size()
		if u*total < sum {
			break
		}
	}
	return max(last, 0), last >= 0
}

func (x *Candidate) size() float64 {
	if x.Size > 0 && x.Size <= math.MaxFloat64 {
		return x.Size
	}
	return 1
}
