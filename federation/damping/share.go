package damping

import (
	"cmp"
	"slices"
)

// Reason is why an endpoint is said to be out that answers and is held back. Whoever
// does not know it takes it for sick.
const Reason = "flapping"

// Member is an endpoint of a share that answers and is held back.
type Member struct {
	Key      Key
	Capacity uint32
}

// Held returns those of members that are to be left out of a share: each that fits
// beside those before it, to half of the capacity at most, and nobody unless others are well: whoever answers
// goes before anybody sick. The rest counts as healthy. Whoever knows the same of a
// share leaves out the same ones. The order of members is changed.
func Held(members []Member, capacity uint64, well bool) (out []Key) {
	if !well {
		return nil
	}
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Key.Endpoint, b.Key.Endpoint), cmp.Compare(a.Key.Port, b.Key.Port))
	})
	var sum uint64
	for _, m := range members {
		if n := sum + uint64(m.Capacity); 2*n <= capacity {
			sum = n
			out = append(out, m.Key)
		}
	}
	return out
}
