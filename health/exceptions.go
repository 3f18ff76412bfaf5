package health

import (
	"slices"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Reported is what the owner of a network says about its share of one service.
// The zero value reports nothing.
type Reported struct {
	Ready      int               // ready members; those that are not ready count nowhere
	Exceptions []mesh.EndpointID // ready members that are ejected, in any order
}

// Honoured returns the exceptions to act on: see CapExceptions.
func (r Reported) Honoured(own func(mesh.EndpointID) bool) []mesh.EndpointID {
	return CapExceptions(r.Ready, r.Exceptions, own)
}

// CapExceptions returns those of the reported exceptions that an observer acts
// on, sorted and without repeats: all that it saw fail itself (own; nil means
// none), and of the rest the smallest IDs up to half of total, rounded down, so
// that a lying or mistaken reporter cannot empty a service. IDs are hashes, so
// the smallest ones are nobody's in particular, and every observer with the
// same report keeps the same ones. total counts ready members. The argument
// exceptions is not changed.
func CapExceptions(total int, exceptions []mesh.EndpointID, own func(mesh.EndpointID) bool) []mesh.EndpointID {
	if len(exceptions) == 0 {
		return nil
	}
	sorted := slices.Clone(exceptions)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	left := max(total, 0) / 2
	return slices.DeleteFunc(sorted, func(id mesh.EndpointID) bool {
		switch {
		case id == 0:
			return true
		case own != nil && own(id):
			return false
		}
		left--
		return left < 0
	})
}
