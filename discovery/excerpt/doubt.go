package excerpt

import (
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// thing is what can be in doubt.
type thing struct {
	kind discovery.Kind // workload, service, or 0: what a name means
	name string
}

// doubtMissing keeps in doubt what is held and not listed by c, the first word of another
// gateway, and returns until when.
func (h *Held) doubtMissing(c change, now time.Time) (until time.Time) {
	var pods, services []string
	for uid := range h.pods {
		if _, listed := c.pods[uid]; !listed {
			pods = append(pods, uid)
		}
	}
	for host := range h.services {
		if _, listed := c.services[host]; !listed {
			services = append(services, host)
		}
	}
	var policies []string
	for name := range h.policies {
		if _, listed := c.policies[name]; !listed && h.tells {
			policies = append(policies, name)
		}
	}
	until = now.Add(Doubt)
	h.mass = ""
	for _, x := range []struct {
		missing, of int
		what        string
	}{{len(pods), len(h.pods), "workloads"}, {len(services), len(h.services), "services"}, {len(policies), len(h.policies), "policies"}} {
		if h.mass == "" && x.missing > freeRemovals && float64(x.missing) > massRemoval*float64(x.of) {
			until = now.Add(LongDoubt)
			h.mass = fmt.Sprintf("gateway %s does not list %d of %d %s that were known: they are kept until %s, unless it lists them before", h.leader, x.missing, x.of, x.what, until.UTC().Format(time.RFC3339))
		}
	}
	for _, uid := range pods {
		h.doubt(thing{discovery.KindWorkload, uid}, until)
	}
	for _, host := range services {
		h.doubt(thing{discovery.KindService, host}, until)
	}
	for _, name := range policies {
		h.doubt(policyThing(name), until)
	}
	return until
}

// doubt keeps x until then, or as long as it was to be kept already.
func (h *Held) doubt(x thing, until time.Time) {
	old, already := h.doubted[x]
	if !already {
		h.backed(x, -1)
	}
	if !already || old.After(until) {
		h.doubted[x] = until
	}
}

// trust ends doubt.
func (h *Held) trust(x thing) {
	if _, doubted := h.doubted[x]; doubted {
		delete(h.doubted, x)
		h.backed(x, 1)
	}
}

// keepOnly withdraws what the leader does not list in c, which is everything and not its
// first word. What is in doubt it has not listed before either, and stays until its time.
func (h *Held) keepOnly(c change, now time.Time) {
	for uid := range h.early {
		if _, listed := c.pods[uid]; !listed {
			h.notEarly(uid)
		}
	}
	for uid := range h.pods {
		_, listed := c.pods[uid]
		if _, doubted := h.doubted[thing{discovery.KindWorkload, uid}]; !listed && !doubted {
			h.withdraw(uid, now)
		}
	}
	for host := range h.services {
		_, listed := c.services[host]
		if _, doubted := h.doubted[thing{discovery.KindService, host}]; !listed && !doubted {
			h.dropService(host)
		}
	}
}

// withdraw drops a pod by the word of the leader: for a while the next one does not bring
// it back.
func (h *Held) withdraw(uid string, now time.Time) {
	if _, had := h.pods[uid]; had && len(h.withdrawn) < MaxWorkloads {
		h.withdrawn[uid] = now
	}
	h.dropPod(uid)
	delete(h.announced, uid)
}

// sweep drops those of the touched that nothing needs any more, and services that nobody
// needs.
func (h *Held) sweep() {
	for k := range h.touched {
		if k.Kind == discovery.KindWorkload && !h.needed(k.Name) {
			h.dropPod(k.Name)
		}
	}
	for host, s := range h.services {
		if h.hosts[host] == 0 && !h.local(host) && !h.keepsTakenOver(s) {
			h.dropService(host)
		}
	}
	for k := range h.giving {
		h.touch(k)
	}
	clear(h.giving)
	if len(h.doubted) == 0 {
		return
	}
	for host := range h.services { // others may claim now what it has
		if !h.firm(host) {
			h.touch(serviceKey(host))
		}
	}
	for x := range h.doubted {
		if x.kind == discovery.KindWorkload {
			h.touch(podKey(x.name))
		}
	}
}
