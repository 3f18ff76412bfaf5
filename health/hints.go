package health

import (
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// DefaultHintTTL is how long an own failure is remembered: long enough for
	// the owner's report to arrive, short enough to need no readmission.
	DefaultHintTTL = 10 * time.Second
	// MaxHints bounds what one Hints remembers.
	MaxHints = 4096
	// MaxAvoid is how many endpoints one request may ask to avoid.
	MaxAvoid = 16
)

// HintService names the share of one service and port on one other network.
type HintService struct {
	Network string
	Service string // canonical hostname
	Port    uint16 // of the service
}

// HintKey names one endpoint of another network as a client knows it, or one
// gateway's way to it.
type HintKey struct {
	HintService
	Endpoint mesh.EndpointID
	Gateway  string // by way of this one alone; empty: whichever is asked
}

// Hints is a client's knowledge of single endpoints behind other networks'
// gateways: what it saw fail itself, until the owner knows better or the memory
// expires. It only advises the gateway; it ejects nobody. At most MaxHints are
// kept: the oldest goes first. Not safe for concurrent use.
type Hints struct {
	ttl   time.Duration
	limit int
	// byService holds at most one hint per endpoint and gateway, oldest first.
	byService map[HintService][]hint
	count     int
	sequence  uint64
}

type hint struct {
	endpoint mesh.EndpointID
	gateway  string // empty: all
	silent   bool   // nobody answered; see Silent
	seen     time.Time
	order    uint64 // of observation over all services
}

// NewHints returns an empty Hints that remembers each failure for ttl; for
// DefaultHintTTL if that is not positive.
func NewHints(ttl time.Duration) *Hints {
	if ttl <= 0 {
		ttl = DefaultHintTTL
	}
	return &Hints{ttl: ttl, limit: MaxHints, byService: map[HintService][]hint{}}
}

// Failed notes that an attempt to k failed at k itself. An endpoint that the
// answer did not name (zero) is not noted.
func (h *Hints) Failed(k HintKey, now time.Time) {
	if k.Endpoint == 0 {
		return
	}
	h.note(k, false, now)
}

// Silent notes that k did not answer at all, as when its node is lost. To choose it is as bad as if it had failed; but
// that nobody has said so yet says nothing of others: whoever is told of them is heard, or is silent as well. What
// was seen failing within the ttl stays what it is.
func (h *Hints) Silent(k HintKey, now time.Time) {
	failed := func(x hint) bool { return x.is(k) && !x.silent && now.Sub(x.seen) < h.ttl }
	if k.Endpoint != 0 && !slices.ContainsFunc(h.byService[k.HintService], failed) {
		h.note(k, true, now)
	}
}

// Heard takes in that endpoint has answered by way of gateway: it is silent no more, by whichever way, and gateway has one to
// it. What its application did is not undone by that.
func (h *Hints) Heard(s HintService, endpoint mesh.EndpointID, gateway string) {
	if h.byService[s] != nil {
		h.filter(s, func(x hint) bool {
			return x.endpoint == endpoint && (x.silent || x.gateway != "" && x.gateway == gateway)
		})
	}
}

func (h *Hints) note(k HintKey, silent bool, now time.Time) {
	h.remove(k)
	if h.count >= h.limit {
		h.dropOldest()
	}
	h.sequence++
	h.byService[k.HintService] = append(h.byService[k.HintService], hint{k.Endpoint, k.Gateway, silent, now, h.sequence})
	h.count++
}

// Cleared takes in that the owner of k found it healthy at factTime. It forgets
// the hint if that is later than the failure was seen, and reports whether it
// did. A factTime beyond now counts as now.
func (h *Hints) Cleared(k HintKey, factTime, now time.Time) bool {
	if factTime.After(now) {
		factTime = now
	}
	for _, x := range h.byService[k.HintService] {
		if x.is(k) && factTime.After(x.seen) {
			h.remove(k)
			return true
		}
	}
	return false
}

// Avoid returns the endpoints of s that gateway is asked not to choose, at most
// MaxAvoid: first what this client saw fail, the newest first; then the reported
// exceptions, as far as CapExceptions honours them among ready members.
func (h *Hints) Avoid(s HintService, gateway string, reported []mesh.EndpointID, ready int, now time.Time) []mesh.EndpointID {
	own := h.byService[s]
	if len(own) == 0 && len(reported) == 0 {
		return nil
	}
	var out []mesh.EndpointID
	for _, x := range slices.Backward(own) {
		if x.concerns(gateway) && now.Sub(x.seen) < h.ttl && !slices.Contains(out, x.endpoint) {
			out = append(out, x.endpoint)
		}
	}
	mine := len(out)
	isOwn := func(id mesh.EndpointID) bool { return slices.Contains(out[:mine], id) }
	for _, id := range CapExceptions(ready, reported, isOwn) {
		if !isOwn(id) {
			out = append(out, id)
		}
	}
	return out[:min(len(out), MaxAvoid)]
}

// Until returns the time before which k, and nothing wider, counts as failing,
// because it was seen failing lately; zero if it was never.
func (h *Hints) Until(k HintKey) time.Time {
	for _, x := range h.byService[k.HintService] {
		if x.is(k) {
			return x.seen.Add(h.ttl)
		}
	}
	return time.Time{}
}

// Unexplained reports whether an endpoint of s that was seen failing within so
// long, by way of gateway, is none that the owner reports: then the owner's word
// has not arrived, or the owner sees it otherwise. One that was silent is not counted.
func (h *Hints) Unexplained(s HintService, gateway string, reported func(HintKey) bool, within time.Duration, now time.Time) bool {
	return slices.ContainsFunc(h.byService[s], func(x hint) bool {
		return !x.silent && x.concerns(gateway) && now.Sub(x.seen) < within && !reported(HintKey{s, x.endpoint, x.gateway})
	})
}

// Known returns the failures at s that are remembered, the oldest first, expired
// ones included.
func (h *Hints) Known(s HintService) []HintKey {
	var out []HintKey
	for _, x := range h.byService[s] {
		out = append(out, HintKey{s, x.endpoint, x.gateway})
	}
	return out
}

// Forget drops what is remembered of k.
func (h *Hints) Forget(k HintKey) { h.remove(k) }

// Len returns how many failures are remembered, expired ones included.
func (h *Hints) Len() int { return h.count }

func (h *Hints) remove(k HintKey) {
	h.filter(k.HintService, func(x hint) bool { return x.is(k) })
}

func (x hint) is(k HintKey) bool { return x.endpoint == k.Endpoint && x.gateway == k.Gateway }

func (x hint) concerns(gateway string) bool { return x.gateway == "" || x.gateway == gateway }

func (h *Hints) dropOldest() {
	var oldest HintService
	order := h.sequence + 1
	for s, hints := range h.byService {
		if hints[0].order < order {
			oldest, order = s, hints[0].order
		}
	}
	h.filter(oldest, func(x hint) bool { return x.order == order })
}

// filter deletes the hints of s that del matches, and s with its last one.
func (h *Hints) filter(s HintService, del func(hint) bool) {
	before := h.byService[s]
	after := slices.DeleteFunc(before, del)
	h.count -= len(before) - len(after)
	if len(after) == 0 {
		delete(h.byService, s)
		return
	}
	h.byService[s] = after
}
