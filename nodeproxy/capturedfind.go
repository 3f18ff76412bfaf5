package nodeproxy

import (
	"fmt"
	"maps"
	"slices"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// place is a network namespace that was found.
type place struct {
	ns      *podns.Namespace
	sandbox *podns.Sandbox // the process by which it was found; nil: told, or path
	told    *announcement  // of the CNI plugin; nil: path
	path    string
}

func (l place) close() {
	if l.sandbox != nil {
		l.sandbox.Close()
		return
	}
	if l.told != nil && l.told.sandbox != nil {
		l.told.sandbox.Close()
	}
	l.ns.Close()
}

// alive reports whether it is still the workload's.
func (l place) alive() bool {
	if l.sandbox != nil {
		return l.sandbox.Alive()
	}
	if l.told != nil {
		return !l.told.gone.Load() && (l.told.sandbox == nil || l.told.sandbox.Alive())
	}
	now, err := podns.Open(l.path)
	if err != nil {
		return false
	}
	defer now.Close()
	return now.ID() == l.ns.ID()
}

// find looks for the namespaces of those workloads; the caller owns what it returns.
func (c *captures) find(look map[string]bool) map[string]place {
	out := c.announcedPlaces(look)
	for _, n := range c.cfg.Namespaces {
		if !look[n.Workload] {
			continue
		}
		delete(look, n.Workload)
		ns, err := podns.Open(n.Path)
		if err != nil {
			c.fail(n.Workload, err)
			continue
		}
		out[n.Workload] = place{ns: ns, path: n.Path}
	}
	found, err := c.finder.Find(look)
	if c.lookedFor(err) {
		c.p.log.Error().Err(err).Msg("cannot look for the network namespaces of pods: " + procRemedy)
	}
	for uid, s := range found {
		out[uid] = place{ns: s.Namespace, sandbox: s}
	}
	for uid := range out {
		look[uid] = true
	}
	return out
}

const procRemedy = "give this process the node's proc file system (capture.proc) and the capability SYS_PTRACE"

// lookedFor notes how it went, and reports whether that is a failure that was not known.
func (c *captures) lookedFor(err error) (news bool) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	news = why != "" && why != c.unfound
	c.unfound = why
	return news
}

// single leaves out workloads whose namespace another one that is to be entered now has as well: whose connections
// are there nobody could say.
func (c *captures) single(places map[string]place) {
	whose := map[podns.ID]string{}
	for _, uid := range slices.Sorted(maps.Keys(places)) {
		at := places[uid]
		other, taken := whose[at.ns.ID()]
		if !taken {
			whose[at.ns.ID()] = uid
			continue
		}
		c.fail(uid, notSingle(other))
		c.failed(at.told, notSingle(other))
		at.close()
		delete(places, uid)
	}
}

func notSingle(other string) error {
	return fmt.Errorf("its network namespace is that of workload %s", other)
}
