package excerpt

import (
	"fmt"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// thing is what can be in doubt.
type thing struct {
	kind discovery.Kind // workload, service, or 0: what a name means
	name string
}

// doubtMissing keeps in doubt what is held and not listed by c, the first word of another
// gateway.
func (h *Held) doubtMissing(c change, now time.Time) {
	var pods []string
	for uid := range h.pods {
		if _, listed := c.pods[uid]; !listed {
			pods = append(pods, uid)
		}
	}
	until := now.Add(Doubt)
	h.mass = ""
	if len(pods) > freeRemovals && float64(len(pods)) > massRemoval*float64(len(h.pods)) {
		until = now.Add(LongDoubt)
		slices.Sort(pods)
		h.mass = fmt.Sprintf("gateway %s does not list %d of %d workloads that were known: they are kept until %s, unless it lists them before", h.leader, len(pods), len(h.pods), until.UTC().Format(time.RFC3339))
	}
	for _, uid := range pods {
		h.doubt(thing{discovery.KindWorkload, uid}, until)
	}
	for host := range h.services {
		if _, listed := c.services[host]; !listed {
			h.doubt(thing{discovery.KindService, host}, until)
		}
	}
}

// doubt keeps x until then, or as long as it was to be kept already.
func (h *Held) doubt(x thing, until time.Time) {
	if old, already := h.doubted[x]; !already || old.After(until) {
		h.doubted[x] = until
	}
}

// keepOnly withdraws what the leader does not list in c, which is everything and not its
// first word. What is in doubt it has not listed before either, and stays until its time.
func (h *Held) keepOnly(c change, now time.Time) {
	for uid := range h.early {
		if _, listed := c.pods[uid]; !listed {
			delete(h.early, uid)
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
}

// sweep drops those of the touched that nothing needs any more, and services that nobody
// needs.
func (h *Held) sweep() {
	for k := range h.touched {
		if k.Kind == discovery.KindWorkload && !h.needed(k.Name) {
			h.dropPod(k.Name)
		}
	}
	for host := range h.services {
		if h.hosts[host] == 0 && !h.local(host) {
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

// firm reports whether the service is what the leader says: it is not in doubt, and not
// there for the sake of what is alone, of which the leader would tell no change.
func (h *Held) firm(host string) bool {
	if _, doubted := h.doubted[thing{discovery.KindService, host}]; doubted {
		return false
	}
	for asked, t := range h.names {
		if _, doubted := h.doubted[thing{name: asked}]; t.host == host && !doubted {
			return true
		}
	}
	for uid := range h.members[host] {
		if _, doubted := h.doubted[thing{discovery.KindWorkload, uid}]; !doubted && h.pods[uid].Node == h.node {
			return true
		}
	}
	for _, w := range h.early {
		if w.Node == h.node && slices.Contains(w.Services, host) {
			return true
		}
	}
	return false
}
