package excerpt

import (
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/policy"
)

// A gateway that begins to lead may be behind the one before, also by more than [Doubt]: its API server lags, or it
// cannot reach it. What it says of a policy is older than what is known if its revision is less; and what it lists
// is deleted if its revision is not more than that up to which the one that no longer had it knew all of its kind.
//
// So of one policy no gateway but the one that has said it brings an older state into force within [LongDoubt].
// After that it does: revisions go back where an API server is restored from a backup.
//
// A gateway takes back what it has said itself at once: it follows one API server and hears in order.

// maxDeleted bounds how many deletions are remembered, some 600 bytes each. Beyond it others are forgotten, mostly
// of whoever deletes most.
const maxDeleted = 10_000

// deletion is that of a policy, remembered so that a gateway that is behind does not undo it; or that it is for no pod
// of this node any more.
type deletion struct {
	revision uint64 // up to which it is known that there is none, or another one
	reign    int    // of the gateway that had said last that there was one: what it takes back itself is not older
	until    time.Time
}

// older is what the gateway that leads says of a policy, and is not taken.
type older struct {
	heldPolicy
	until time.Time
}

// isOlder reports whether p, as the gateway that leads says it, is older than what is known of it, and until when
// that stands.
func (h *Held) isOlder(name string, p heldPolicy, now time.Time) (until time.Time, is bool) {
	if p.revision == 0 {
		return until, false
	}
	if d, deleted := h.deleted[name]; deleted {
		return d.until, d.reign != h.reign && p.revision <= d.revision
	}
	known, had := h.policies[name]
	if !had || known.reign == h.reign || p.revision >= known.revision {
		return until, false
	}
	until = now.Add(LongDoubt)
	if o, already := h.older[name]; already {
		until = o.until
	}
	return until, true
}

// newReign begins that of a gateway that tells policies for the first time, c.
func (h *Held) newReign(c change, now time.Time) {
	h.reign++
	h.policing, h.reigns = true, now
	var missing []thing
	for name := range h.policies {
		_, listed := c.policies[name]
		if _, doubted := h.doubted[policyThing(name)]; !listed && !doubted {
			missing = append(missing, policyThing(name))
		}
	}
	until := now.Add(Doubt)
	if n := len(missing); n > freeRemovals && float64(n) > massRemoval*float64(len(h.policies)) {
		until = now.Add(LongDoubt)
	}
	for _, x := range missing { // by one that has led already, and told of no policies until now
		h.doubt(x, until)
	}
	for name, d := range h.deleted {
		if d.until.IsZero() {
			d.until = now.Add(LongDoubt)
			h.deleted[name] = d
		}
	}
}

// holdBack keeps p out of force.
func (h *Held) holdBack(name string, p heldPolicy, until time.Time) {
	h.notOlder(name)
	if h.bytes+costOfPolicy(p) > MaxBytes {
		p = closedPolicy(name, "no room")
		h.leave(policyThing(name), boundOfBytes)
	}
	h.bytes += costOfPolicy(p)
	h.older[name] = older{p, until}
}

func (h *Held) notOlder(name string) {
	if o, is := h.older[name]; is {
		h.bytes -= costOfPolicy(o.heldPolicy)
		delete(h.older, name)
	}
}

// lost is a policy that the gateway that leads does not have any more, or does not tell any more.
type lost struct {
	name string
	heldPolicy
	until uint64 // up to which revision it says so; 0: it does not say
}

// remember notes of what is gone which states of it are not to come back. Where the gateway that leads does not say
// it, they are those before the one that was held; and that one too, if it would be for pods of this node that the
// gateway tells of.
func (h *Held) remember(list []lost, now time.Time) {
	for _, x := range list {
		revision := x.until
		if revision < x.revision && h.outdated(x) {
			revision = x.revision
		}
		revision = max(revision, x.revision-min(x.revision, 1))
		if revision == 0 {
			continue
		}
		if len(h.deleted) >= maxDeleted {
			for other := range h.deleted {
				delete(h.deleted, other)
				break
			}
		}
		h.deleted[x.name] = deletion{revision, x.reign, now.Add(LongDoubt)}
	}
}

// outdated reports whether the gateway that leads knows of an end of x, or a change.
func (h *Held) outdated(x lost) bool {
	if x.revision == 0 || h.known.Of(policy.ParseName(x.name).Kind) < x.revision {
		return false
	}
	o, _ := policy.Parse(x.record)
	if o == nil {
		return false
	}
	set := policy.NewSet(h.base.root, []policy.Object{o})
	for uid, w := range h.pods {
		if w.Node != h.node {
			continue
		}
		if _, doubted := h.doubted[thing{discovery.KindWorkload, uid}]; !doubted && set.Concerns(o, policy.Workload{Namespace: w.Namespace, Labels: w.Labels}) {
			return true
		}
	}
	return false
}

// doubtLonger reports whether a policy is to be doubted for longer than others: the gateway that leads says that it
// has not heard yet of all that became of its kind.
func (h *Held) doubtLonger(x thing, now time.Time) bool {
	known := h.known.Of(policy.ParseName(x.name).Kind)
	return known > 0 && known < h.policies[x.name].revision && now.Before(h.reigns.Add(LongDoubt))
}

// settleOlder takes what has been held back for long enough.
func (h *Held) settleOlder(now time.Time) {
	for name, d := range h.deleted {
		if !now.Before(d.until) {
			delete(h.deleted, name)
		}
	}
	for name, o := range h.older {
		if now.Before(o.until) {
			continue
		}
		delete(h.deleted, name)
		h.notOlder(name)
		h.dropPolicy(name)
		h.putPolicy(name, o.heldPolicy)
	}
}

// heldBack says what is held back; "" if nothing is.
func (h *Held) heldBack() string {
	if len(h.older) == 0 {
		return ""
	}
	first, until := "", time.Time{}
	for name, o := range h.older {
		if first == "" || name < first {
			first = name
		}
		if o.until.After(until) {
			until = o.until
		}
	}
	return fmt.Sprintf("gateway %s tells %d policies as they were before, such as %s: the newer ones stay in force, and deleted ones out of it, until it has caught up, or until %s at most; if the cluster was restored from a backup nothing is wrong",
		h.leader, len(h.older), first, until.UTC().Format(time.RFC3339))
}
