package pods

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// leftovers are rules in pods of this node that discovery says are not in the mesh. A node proxy that ended before they left the
// mesh has left its rules there, which refuse whatever they lead to it. The zero value is ready.
type leftovers struct {
	again time.Time      // when pods are looked for
	looks map[string]int // by workload UID, how many there were at one that is not in the mesh; Set.mu guards it
}

const (
	// leftoversEvery is how often pods are looked for that are not in the mesh.
	leftoversEvery = 5 * time.Second
	// leftoversLooks are how many looks a pod has that is not found, or of which it cannot be said: what has no process for longer
	// has no namespace either.
	leftoversLooks = 12
)

// clean begins to take out what an earlier node proxy has left in pods that are not in the mesh. One that discovery does not
// know stays as it is: nobody may have told of it yet.
func (c *Set) clean(snap *mesh.Snapshot, now time.Time) {
	if now.Before(c.leftovers.again) || c.p.Draining() {
		return
	}
	look, looks := map[string]bool{}, map[string]int{}
	c.mu.Lock()
	for _, w := range slices.Concat(snap.OnNode(c.cfg.Network, c.cfg.Node), snap.OutsideOn(c.cfg.Network, c.cfg.Node)) {
		if !w.Plain && !w.Outside || c.held[w.UID] != nil || c.announced[w.UID] != nil {
			continue
		}
		looks[w.UID] = min(c.leftovers.looks[w.UID]+1, leftoversLooks+1)
		look[w.UID] = looks[w.UID] <= leftoversLooks && !c.works.busy(w.UID)
	}
	c.leftovers.looks = looks
	c.mu.Unlock()
	maps.DeleteFunc(look, func(_ string, due bool) bool { return !due })
	if len(look) == 0 {
		return
	}
	began := time.Now()
	found, _ := c.finder.Find(look) // find says what is wrong
	c.leftovers.again = now.Add(max(leftoversEvery, findShare*time.Since(began)))
	places := map[string]place{}
	for uid, s := range found {
		places[uid] = place{ns: s.Namespace, sandbox: s}
	}
	for _, n := range c.cfg.Namespaces {
		if !look[n.Workload] || found[n.Workload] != nil {
			continue
		}
		if ns, err := podns.Open(n.Path); err == nil {
			places[n.Workload] = place{ns: ns, path: n.Path}
		}
	}
	for uid, at := range places {
		c.works.begin(uid, "the look for rules of an earlier node proxy", at.ns.ID(), func() { c.cleanOne(uid, at) })
	}
}

// cleanOne takes rules out of a pod that is not in the mesh, unless somebody needs them still; it owns at.
func (c *Set) cleanOne(uid string, at place) {
	defer at.close()
	home, err := podns.Own()
	if err != nil || at.ns.ID() == home {
		return
	}
	defer at.ns.Lock(lockWithin)() // nobody enters it
	owner, there, err := capture.Owner(at.ns)
	if err != nil {
		return
	}
	clean := !there || owner != c.cfg.owner()
	if !clean {
		if clean, err = c.takeOut(at.ns); clean {
			c.p.Log.Info().Str("workload", uid).Msg("rules of an earlier node proxy were in a pod that is not in the mesh: they are taken out")
		}
	}
	if lacking(err) == nil && err != nil {
		c.p.Log.Error().Str("workload", uid).Err(err).Msg("rules of an earlier node proxy are left in a pod that is not in the mesh")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leftovers.looks[uid] = 1; clean {
		c.leftovers.looks[uid] = leftoversLooks
	}
}

// takeOut takes the rules of our node proxies out of a pod, and reports whether it has. One that runs does so itself, and while
// one drains what is open there needs the table.
func (c *Set) takeOut(ns *podns.Namespace) (bool, error) {
	if c.sources.used(ns.ID()) || capture.Free(ns, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), capture.OutboundPort)) != nil {
		return false, nil
	}
	if err := capture.Set(ns, capture.Rules{Owner: c.cfg.owner()}); err != nil {
		return false, err
	}
	if carried, err := capture.Carried(ns); carried || err != nil {
		return false, err
	}
	err := errors.Join(capture.RemoveSource(ns), capture.Remove(ns))
	return err == nil, err
}
