package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
)

// Explanation is the answer of one process about one destination: the JSON of /explain.
type Explanation struct {
	Process     string    `json:"process"`               // its kind and name
	Network     string    `json:"network"`               // its own
	Source      string    `json:"source,omitempty"`      // UID of the client workload; absent at a gateway, which chooses the same for all
	Destination string    `json:"destination"`           // host:port
	Now         time.Time `json:"now"`                   // by the clock of the process
	Discovery   *Told     `json:"discovery,omitempty"`   // at a node proxy without a discovery file: the source of its discovery
	Refused     string    `json:"refused,omitempty"`     // why there is no candidate
	PassedOn    string    `json:"passedOn,omitempty"`    // at a node proxy that captures everything: why the mesh does not carry the connection and leaves it to the kernel
	NotCaptured string    `json:"notCaptured,omitempty"` // at a node proxy that captures virtual addresses: why this connection is not captured and bypasses it
	Unasked     bool      `json:"unasked,omitempty"`     // at a node proxy: the service is not subscribed at gateways until it is used
	NotCarried  bool      `json:"notCarried,omitempty"`  // at a gateway: no pod of its network serves this
	Candidates  []Verdict `json:"candidates"`            // pods of its own network, and remote services

	AtDestination bool         `json:"atDestination,omitempty"` // at a node proxy of the destination, not of the source: it has policy decisions only
	Permissions   []Permission `json:"permissions,omitempty"`   // at a node proxy: policy decisions of the pods on its node that the destination leads to
}

// Permission is the policy decision of one pod about connections from the source.
type Permission struct {
	UID     string `json:"uid"`               // of the pod
	Pod     string `json:"pod,omitempty"`     // its namespace/name, if not in the UID
	Port    uint16 `json:"port"`              // that its application listens on
	Address string `json:"address,omitempty"` // pod address that connections are made to; absent if the decision holds for all of its addresses
	// NotDialled is whether Isthmus node proxies do not connect to the address: they use the first one.
	// Stock node proxies and plain-text clients may connect to it.
	NotDialled bool     `json:"notDialled,omitempty"`
	From       string   `json:"from,omitempty"`   // assumed source address; absent if unknown, and then address ranges match nothing
	Allowed    bool     `json:"allowed"`          // connections are allowed
	Policy     string   `json:"policy,omitempty"` // the deciding policy; empty if none selects the pod
	Why        string   `json:"why"`              // the decision and its rule, as text
	DryRun     []string `json:"dryRun,omitempty"` // decisions of policies in dry run
}

// Sentence returns p as one line of text.
func (p Permission) Sentence() string {
	s := fmt.Sprintf("%s:%d by its policies: %s", cmp.Or(p.Pod, p.UID), p.Port, p.Why)
	if p.From != "" {
		s += ", for connections from " + p.From
	}
	switch {
	case p.NotDialled:
		s += ", for connections to its address " + p.Address + ", which stock node proxies and plain text may use"
	case p.Address != "":
		s += ", for connections to its first address " + p.Address + ", which node proxies of ours use"
	}
	for _, d := range p.DryRun {
		s += "; in dry run: " + d
	}
	return s
}

// Denied reports whether policies deny connections of the source to any of the pods, at an address
// that Isthmus node proxies connect to.
func (e *Explanation) Denied() bool {
	return slices.ContainsFunc(e.Permissions, func(p Permission) bool { return !p.Allowed && !p.NotDialled })
}

// Told is the source of a node proxy's discovery of its own network.
type Told struct {
	Known   bool      `json:"known"`            // everything needed was received at some time
	Gateway string    `json:"gateway"`          // active source; empty if there is none
	Last    time.Time `json:"last,omitzero"`    // when it was last known to be current; absent while a source is active
	Cached  bool      `json:"cached,omitzero"`  // from the discovery cache; no gateway has sent it since
	Doubted int       `json:"doubted,omitzero"` // objects that the active source does not list and the previous one did
}

// Sentence returns t as text.
func (t *Told) Sentence(now time.Time) string {
	s := "not received from any gateway yet"
	switch {
	case !t.Known:
	case t.Cached:
		s = "from the cache, as it was " + standing.Age(now.Sub(t.Last)) + " ago; no gateway has sent it since"
	case t.Gateway == "" || !t.Last.IsZero():
		s = "stale: last current " + standing.Age(now.Sub(t.Last)) + " ago; no gateway sends it now"
	default:
		s = "from gateway " + t.Gateway
	}
	if t.Doubted > 0 {
		s += fmt.Sprintf(", without %d objects that the previous source listed", t.Doubted)
	}
	return s
}

// Reasons against a remote service or its gateways, in addition to those of package standing.
const (
	HeldUnreached   standing.Held = "unreached"   // none of its gateways accepts connections
	HeldUndelivered standing.Held = "undelivered" // its gateways accept connections, and none reaches a pod
	HeldDrained     standing.Held = "drained"     // of a gateway: discovery or its network drains it; no new connections while another one serves
)

// Verdict is whether one candidate takes part in the choice, and why.
type Verdict struct {
	standing.Verdict
	Unknown  bool      `json:"unknown,omitempty"`  // of a remote service: no report was received
	Stale    time.Time `json:"stale,omitzero"`     // of a remote service: since when its reports are stale
	Failed   *Attempts `json:"failed,omitempty"`   // failed attempts since the last success; absent if none
	Kept     *Kept     `json:"kept,omitempty"`     // of a remote service: sessions kept with its pods; absent if none are wanted
	Gateways []Verdict `json:"gateways,omitempty"` // of a remote service
	Line     *Line     `json:"line,omitempty"`     // of a remote service: connections to its network's gateways; absent if none is open
	Path     string    `json:"path,omitempty"`     // of a gateway: fault of the path to it and the remedy, by the last check; empty if none or not checked
}

// Kept counts the sessions of a preconnect pool. A connection on one of these needs no handshake.
type Kept struct {
	Held   int `json:"held"`   // open now
	Wanted int `json:"wanted"` // wanted for the connections of the source's identity
}

// Attempts are consecutive failed attempts of connections.
type Attempts struct {
	Times  int       `json:"times"`  // number of attempts
	Reason string    `json:"reason"` // reason of the last
	Error  string    `json:"error"`  // error of the last
	Last   time.Time `json:"last"`   // time of the last
	Fault  bool      `json:"fault"`  // the last counted against health; see causes
}

// clearly is how many attempts at a candidate that takes part must fail without effect on health
// to be a finding although other candidates succeed.
const clearly = 3

// Well reports whether connections go to v because it is healthy, not in panic mode.
func (v Verdict) Well() bool {
	return v.In && !slices.ContainsFunc(v.Causes, func(c standing.Cause) bool { return c.Word != standing.HeldWeak && c.Word != standing.HeldFarther })
}

// Fails reports whether at least the last times connections to v failed in a row, without effect on
// health.
func (v Verdict) Fails(times int) bool {
	return v.In && v.Failed != nil && !v.Failed.Fault && v.Failed.Times >= times
}

// InVain reports whether enough attempts failed in a row, without effect on health, to rule out
// chance.
func (a *Attempts) InVain() bool { return !a.Fault && a.Times >= clearly }

// Serves reports whether connections to the destination are expected to succeed. A healthy candidate
// is left, none that takes part fails all the time, and no policy known to the process denies them.
func (e *Explanation) Serves() bool {
	if e.AtDestination || e.Denied() {
		return !e.Denied()
	}
	if e.PassedOn != "" || e.NotCaptured != "" {
		return true
	}
	return slices.ContainsFunc(e.Candidates, func(v Verdict) bool { return v.Well() && !v.Fails(1) }) &&
		!slices.ContainsFunc(e.Candidates, func(v Verdict) bool { return v.Fails(clearly) })
}

// Sentence returns v as one line of text.
func (v Verdict) Sentence(now time.Time) string {
	x := v.Verdict
	x.Causes = slices.Clone(v.Causes)
	for i := range x.Causes {
		switch c := &x.Causes[i]; c.Word { // standing prints unknown words unchanged
		case HeldUnreached:
			c.Word = "none of its gateways can be reached"
		case HeldUndelivered:
			c.Word = "its gateways can be reached, and none gets through to a pod"
		}
	}
	s := x.Sentence(now)
	if v.In && !v.Well() {
		s = strings.Replace(s, " in, ", " used although out, ", 1)
	}
	switch {
	case v.Unknown && v.In:
		s += "; nothing is known of " + v.Name + ": used all the same"
	case v.Unknown:
		s += "; nothing is known of " + v.Name
	}
	if !v.Stale.IsZero() {
		s += "; its gateways fell silent " + ago(now, v.Stale) + ": this is their last word"
	}
	if v.Kept != nil {
		s += fmt.Sprintf("; %d of %d wanted sessions with its pods are kept", v.Kept.Held, v.Kept.Wanted)
	}
	if v.Line != nil && !now.IsZero() { // its numbers change all the time
		s += "; line: " + v.Line.String()
	}
	if v.Path != "" {
		s += "; path: " + v.Path
	}
	if v.Failed != nil {
		s += "; " + v.Failed.Sentence(now)
	}
	return s
}

// ago returns the time from at to now as text, without a number if now is zero: it changes all the time.
func ago(now, at time.Time) string {
	if now.IsZero() {
		return "a while ago"
	}
	return standing.Age(now.Sub(at)) + " ago"
}

// Sentence returns which attempts failed, when and why, as text.
func (a *Attempts) Sentence(now time.Time) string {
	which := "the last attempt failed"
	if a.Times > 1 {
		which = fmt.Sprintf("the last %d attempts failed", a.Times)
	}
	if !now.IsZero() {
		which += fmt.Sprintf(", %s ago", standing.Age(now.Sub(a.Last)))
	}
	if a.Error == "" || a.Error == a.Reason {
		return which + ": " + a.Reason
	}
	return which + ": " + a.Reason + " (" + a.Error + ")"
}
