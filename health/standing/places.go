package standing

import (
	"cmp"
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Places finds pods by endpoint in a list that is in another order. It is built
// when somebody first asks. The zero value is ready. Not safe for concurrent use.
type Places struct {
	sorted []place
	built  bool
}

type place struct {
	endpoint mesh.EndpointID
	at       int
}

// Reset says that the list is another one.
func (p *Places) Reset() { p.sorted, p.built = p.sorted[:0], false }

// Find returns where id is in a list of n, whose pods have these endpoints; zero is
// no pod.
func (p *Places) Find(id mesh.EndpointID, n int, endpoint func(i int) mesh.EndpointID) (at int, ok bool) {
	if !p.built {
		p.built = true
		for i := range n {
			if e := endpoint(i); e != 0 {
				p.sorted = append(p.sorted, place{e, i})
			}
		}
		slices.SortFunc(p.sorted, func(a, b place) int { return cmp.Compare(a.endpoint, b.endpoint) })
	}
	i, ok := slices.BinarySearchFunc(p.sorted, id, func(p place, id mesh.EndpointID) int { return cmp.Compare(p.endpoint, id) })
	if !ok {
		return 0, false
	}
	return p.sorted[i].at, true
}
