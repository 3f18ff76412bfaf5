package file

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// Guard says which changes of a file are held until somebody confirms them: a
// file that was cut off, or is another mesh's, must not take every process's
// view away at once.
type Guard struct {
	// Network is that of the process: a file that no longer lists it is held.
	// Empty holds no file for this.
	Network string
	// MaxRemoval is the largest share of the workloads, in (0, 1], that one
	// change may remove. Zero is DefaultMaxRemoval; 1 holds nothing for this.
	MaxRemoval float64
}

const (
	// DefaultMaxRemoval is a Guard's MaxRemoval unless it says otherwise.
	DefaultMaxRemoval = 0.3
	// freeRemovals is how many workloads a change may always remove: in a mesh
	// of three pods one is a third.
	freeRemovals = 2
)

// objection says why next may not follow old unconfirmed; "" if it may.
func (g Guard) objection(old, next *mesh.Snapshot) string {
	if g.Network != "" && old.HasNetwork(g.Network) && !next.HasNetwork(g.Network) {
		return fmt.Sprintf("it removes network %q, which this process is on", g.Network)
	}
	limit := g.MaxRemoval
	if limit == 0 {
		limit = DefaultMaxRemoval
	}
	before, gone := len(old.Workloads()), 0
	for _, w := range old.Workloads() {
		if next.Workload(w.UID) == nil {
			gone++
		}
	}
	if gone > freeRemovals && float64(gone)/float64(before) > limit {
		return fmt.Sprintf("it removes %d of %d workloads, more than %.6g %%", gone, before, 100*limit)
	}
	return ""
}

// identifier names the content of c apart from Confirm, in twelve hexadecimal
// digits: the same for every process that reads the same description, whatever
// its comments, layout and order of keys.
func identifier(c discovery.Config) string {
	c.Confirm = ""
	data, err := json.Marshal(c)
	if err != nil { // plain data
		panic(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}
