package pods

import (
	"errors"
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

// alive reports whether it is still the workload's, as far as is known.
func (l place) alive() bool {
	if l.sandbox != nil {
		return l.sandbox.Alive()
	}
	if l.told != nil {
		return !l.told.gone.Load() && (l.told.sandbox == nil || l.told.sandbox.Alive())
	}
	now, err := podns.Open(l.path)
	if err != nil {
		return podns.Lacking(err)
	}
	defer now.Close()
	return now.ID() == l.ns.ID()
}

// find looks for the namespaces of those workloads; the caller owns what it returns.
func (c *Set) find(look map[string]bool) map[string]place {
	out := c.announcedPlaces(look)
	for i, n := range c.cfg.Namespaces {
		if !look[n.Workload] {
			continue
		}
		delete(look, n.Workload)
		ns, err := podns.Open(n.Path)
		if err != nil {
			c.fail(n.Workload, misnamedError{fmt.Errorf("capture.namespaces[%d].path: %w: name the file of its network namespace, such as /run/netns/shop", i, err)})
			continue
		}
		out[n.Workload] = place{ns: ns, path: n.Path}
	}
	found, err := c.finder.Find(look)
	if c.lookedFor(err) {
		c.p.Log.Error().Err(err).Msg("cannot look for the network namespaces of pods: " + findRemedy(err))
	}
	for uid, s := range found {
		out[uid] = place{ns: s.Namespace, sandbox: s}
	}
	for uid := range out {
		look[uid] = true
	}
	return out
}

// findRemedy is what to do when pods cannot be looked for.
func findRemedy(err error) string {
	if podns.Lacking(err) {
		return "raise the limit of open files (RLIMIT_NOFILE) of the node proxy, or the memory of its host"
	}
	return "give this process the node's proc file system (capture.proc) and the capability SYS_PTRACE"
}

// lookedFor notes how it went, and reports whether that is a failure that was not known.
func (c *Set) lookedFor(err error) (news bool) {
	why := ""
	if err != nil {
		why = err.Error() + ": " + findRemedy(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	news = why != "" && why != c.unfound
	c.unfound = why
	return news
}

// single leaves out workloads whose namespace another one that is to be entered now has as well: whose connections
// are there nobody could say.
func (c *Set) single(places map[string]place) {
	whose := map[podns.ID]string{}
	for _, uid := range slices.Sorted(maps.Keys(places)) {
		at := places[uid]
		if c.works.in(at.ns.ID()) { // another one is just entered or left there: when that has ended it is known whose it is
			at.close()
			delete(places, uid)
			continue
		}
		other, taken := whose[at.ns.ID()]
		if !taken {
			whose[at.ns.ID()] = uid
			continue
		}
		err := c.notSingle(at, other)
		c.fail(uid, err)
		c.failed(at.told, err)
		at.close()
		delete(places, uid)
	}
}

// notSingle is why a workload is not captured whose namespace another one has.
func (c *Set) notSingle(at place, other string) error {
	if at.path == "" {
		return fmt.Errorf("its network namespace is that of workload %s: one of the two has gone, or discovery has the wrong one of them on this node: remove it there", other)
	}
	return fmt.Errorf("%s: %s is the network namespace of workload %s as well: name that of this one, or remove the entry", c.pathKey(at), at.path, other)
}

// ownNamespace is why a pod is not captured that is found where this process itself is.
func (c *Set) ownNamespace(at place) error {
	if at.path == "" {
		return errors.New("its network namespace is that of this node proxy: give the pod a network of its own (hostNetwork: false), or take it out of the mesh (label istio.io/dataplane-mode: none)")
	}
	return fmt.Errorf("%s: %s is the network namespace of this node proxy itself: name that of the pod, such as /run/netns/shop", c.pathKey(at), at.path)
}

// pathKey is the key of the configuration that names a place.
func (c *Set) pathKey(at place) string {
	i := slices.IndexFunc(c.cfg.Namespaces, func(n Namespace) bool { return n.Path == at.path })
	return fmt.Sprintf("capture.namespaces[%d].path", i)
}

// misnamedError is that of a file which the configuration names. One that is not there may come later, as the process of a pod
// does; but nobody else says that it is not.
type misnamedError struct{ error }

func (e misnamedError) Unwrap() error { return e.error }
