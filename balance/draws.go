package balance

import "sync/atomic"

// The steps of Draws: 1/p and 1/p² in units of 2⁻⁶⁴, where p = 1.3247… solves
// p³ = p + 1 (the plastic number), the second rounded to odd. Their multiples
// fill the unit square evenly from the first few on: M. Roberts, "The
// unreasonable effectiveness of quasirandom sequences" (2018), sequence R2.
const (
	stepU = 0xc13fa9a902a6328f
	stepV = 0x91e10da5c79e7b1d
)

// Draws is a source of pairs of numbers that spread evenly instead of at
// random: after n of them every share is right to within a few in n, where
// independent draws would be off by √n. Use one per service and port; several
// users of one see each only part of the pattern. Safe for concurrent use.
type Draws struct {
	u, v uint64 // where the sequence starts
	n    atomic.Uint64
}

// NewDraws returns the sequence of seed. Different seeds start at unrelated
// points, so that proxies do not all pick the same endpoint at the same time.
func NewDraws(seed uint64) *Draws {
	return &Draws{u: mix(seed), v: mix(seed + 0x9e3779b97f4a7c15)}
}

// Next returns the next pair, each in [0, 1).
func (d *Draws) Next() (u, v float64) {
	n := d.n.Add(1)
	return unit(d.u + n*stepU), unit(d.v + n*stepV)
}

// unit maps x to [0, 1): the upper 53 bits, which a float64 holds exactly.
func unit(x uint64) float64 { return float64(x>>11) / (1 << 53) }

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
