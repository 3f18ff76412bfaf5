package file

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

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

// inventory is what is in force: a snapshot, and what is kept of workloads that it does
// not hold.
type inventory struct {
	*mesh.Snapshot
	elsewhere discovery.Elsewhere
}

// each yields the UID of each workload.
func (i inventory) each(yield func(uid string)) {
	for _, w := range i.Workloads() {
		yield(w.UID)
	}
	for n := range i.elsewhere.Len() {
		yield(i.elsewhere.UID(n))
	}
}

// size is how many workloads there are.
func (i inventory) size() int { return i.NumWorkloads() + i.elsewhere.Len() }

// serves reports whether a workload of svc is listed.
func (i inventory) serves(svc *mesh.Service) bool {
	return svc != nil && (i.elsewhere.Serves(svc.Hostname) ||
		slices.ContainsFunc(i.Networks(svc), func(network string) bool { return len(i.Members(svc, network)) > 0 }))
}

// objection says why next may not follow old unconfirmed; "" if it may.
func (g Guard) objection(old, next inventory) string {
	if g.Network != "" && old.HasNetwork(g.Network) && !next.HasNetwork(g.Network) {
		return fmt.Sprintf("it removes network %q, which this process is on", g.Network)
	}
	limit := g.MaxRemoval
	if limit == 0 {
		limit = DefaultMaxRemoval
	}
	before := old.size()
	var gone []string
	there := make(map[string]struct{}, next.size())
	next.each(func(uid string) { there[uid] = struct{}{} })
	old.each(func(uid string) {
		if _, still := there[uid]; !still {
			gone = append(gone, uid)
		}
	})
	slices.Sort(gone)
	if len(gone) <= freeRemovals || float64(len(gone))/float64(before) <= limit {
		return ""
	}
	why := fmt.Sprintf("it removes %d of %d workloads, more than %.6g %%: %s", len(gone), before, 100*limit, few(gone))
	if services := emptied(old, next); len(services) > 0 {
		why += "; no workload is left of " + few(services)
	}
	return why
}

// emptied returns the services of next whose last workload it takes away, and
// those with workloads that it removes, by hostname.
func emptied(old, next inventory) []string {
	var out []string
	for _, svc := range old.Services() {
		if old.serves(svc) && !next.serves(next.Service(svc.Hostname)) {
			out = append(out, svc.Hostname)
		}
	}
	return out
}

// maxNamed is how many names a message lists.
const maxNamed = 5

// few lists the first few names.
func few(names []string) string {
	if n := len(names) - maxNamed; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), n)
	}
	return strings.Join(names, ", ")
}

// identifier names the content of c, which data says, apart from Confirm, in twelve
// hexadecimal digits: the same for every process that reads the same description,
// whatever its comments, layout and order of keys.
func identifier(c discovery.Config, data []byte) string {
	c.Confirm = ""
	c.Shares = slices.Clone(c.Shares)
	for i := range c.Shares {
		if _, ok := c.Shares[i].Since(); !ok {
			c.Shares[i].Created = time.Time{} // it counts for nothing, and JSON has no word for it
		}
	}
	if plain, err := json.Marshal(c); err == nil {
		data = plain
	} // else no line confirm: can name it, but the command can: better than nobody who carries traffic
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}
