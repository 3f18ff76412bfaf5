package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/health/standing"
)

// Explanation is what one process answers about one destination: the JSON of
// /explain.
type Explanation struct {
	Process     string    `json:"process"`               // its kind and name
	Network     string    `json:"network"`               // its own
	Source      string    `json:"source,omitempty"`      // UID of the workload that asks; gateways choose for all alike
	Destination string    `json:"destination"`           // host:port
	Now         time.Time `json:"now"`                   // by its clock
	Discovery   *Told     `json:"discovery,omitempty"`   // by a node proxy without a file: who has told what is on its network
	Refused     string    `json:"refused,omitempty"`     // why there is no candidate at all
	PassedOn    string    `json:"passedOn,omitempty"`    // by a node proxy that captures everything: why the mesh does not carry this, and the connection is left to the kernel
	NotCaptured string    `json:"notCaptured,omitempty"` // by a node proxy that captures virtual addresses: why this connection does not come to it, and goes as without it
	Unasked     bool      `json:"unasked,omitempty"`     // by a node proxy: no gateway is asked of this service until it is used
	NotCarried  bool      `json:"notCarried,omitempty"`  // by a gateway: no pod of its network serves this
	Candidates  []Verdict `json:"candidates"`            // pods of its own network, and shares of others

	AtDestination bool         `json:"atDestination,omitempty"` // by a node proxy that is not the source's: it says what its policies decide, and nothing else
	Permissions   []Permission `json:"permissions,omitempty"`   // by a node proxy, of the pods on its node that the destination leads to
}

// Permission is what the policies of a pod say of connections of the source.
type Permission struct {
	UID     string `json:"uid"`               // of the pod
	Pod     string `json:"pod,omitempty"`     // its namespace/name, if the UID does not say it
	Port    uint16 `json:"port"`              // on which its application listens
	Address string `json:"address,omitempty"` // of the pod, that connections are made to; left out: what is said holds for all of its addresses
	// NotDialled says of Address that node proxies of ours do not connect to it, which take the first: stock
	// ones do, and what comes in plain text.
	NotDialled bool     `json:"notDialled,omitempty"`
	From       string   `json:"from,omitempty"`   // address that connections are taken to come from; left out: it is not known, and ranges match nothing
	Allowed    bool     `json:"allowed"`          // they may be
	Policy     string   `json:"policy,omitempty"` // that decides; empty if none is for the pod
	Why        string   `json:"why"`              // in words, with the rule
	DryRun     []string `json:"dryRun,omitempty"` // what policies in dry run would decide
}

// Sentence says it in plain words.
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

// Denied reports whether policies deny connections of the source to any of the pods, where node proxies of ours
// connect to it.
func (e *Explanation) Denied() bool {
	return slices.ContainsFunc(e.Permissions, func(p Permission) bool { return !p.Allowed && !p.NotDialled })
}

// Told says where a node proxy has what it knows of its own network.
type Told struct {
	Known   bool      `json:"known"`            // everything that it needs has been told, now or ever
	Gateway string    `json:"gateway"`          // that tells now; empty if none does
	Last    time.Time `json:"last,omitzero"`    // when it was last known to be current; left out while a gateway tells
	Cached  bool      `json:"cached,omitzero"`  // it is from the cache of discovery, and no gateway has told since
	Doubted int       `json:"doubted,omitzero"` // objects that the gateway that tells does not list, and the one before did
}

// Sentence says it in words.
func (t *Told) Sentence(now time.Time) string {
	s := "no gateway has told what is on this network yet"
	switch {
	case !t.Known:
	case t.Cached:
		s = "from the cache, as it was " + standing.Age(now.Sub(t.Last)) + " ago: no gateway has told since"
	case t.Gateway == "" || !t.Last.IsZero():
		s = "as gateways told it until " + standing.Age(now.Sub(t.Last)) + " ago: none does now"
	default:
		s = "told by gateway " + t.Gateway
	}
	if t.Doubted > 0 {
		s += fmt.Sprintf(", which does not list %d objects that another one did", t.Doubted)
	}
	return s
}

// Words of what may be held against a share or its gateways, beside those of package standing.
const (
	HeldUnreached   standing.Held = "unreached"   // none of its gateways takes connections
	HeldUndelivered standing.Held = "undelivered" // they do, and nobody gets through to a pod
	HeldDrained     standing.Held = "drained"     // of a gateway: it is to get nothing new while another one serves, as discovery or its network says
)

// Verdict says of one candidate whether it takes part in the choice, and why.
type Verdict struct {
	standing.Verdict
	Unknown  bool      `json:"unknown,omitempty"`  // of a share: nobody says anything of it
	Stale    time.Time `json:"stale,omitzero"`     // of a share: since when nobody vouches for what is known
	Failed   *Attempts `json:"failed,omitempty"`   // since the last that succeeded; nil: none
	Kept     *Kept     `json:"kept,omitempty"`     // of a share: sessions kept with its pods; nil: none asked for
	Gateways []Verdict `json:"gateways,omitempty"` // of a share
	Line     *Line     `json:"line,omitempty"`     // of a share: connections to its network's gateways; nil: none is open
	Path     string    `json:"path,omitempty"`     // of a gateway: the fault of the path to it, and the remedy, by the last check; empty: none, or not checked
}

// Kept are the sessions of a warm set: a connection that goes on one has no handshake
// to wait for.
type Kept struct {
	Held   int `json:"held"`   // now
	Wanted int `json:"wanted"` // by the connections of the source's identity
}

// Attempts are failed attempts of connections, one after another.
type Attempts struct {
	Times  int       `json:"times"`  // how many
	Reason string    `json:"reason"` // of the last
	Error  string    `json:"error"`  // of the last
	Last   time.Time `json:"last"`   // when
	Fault  bool      `json:"fault"`  // the last moved somebody's health: what came of it stands in causes
}

// clearly is how many attempts at a candidate that takes part must have failed, held
// against nobody, to be a finding although others succeed.
const clearly = 3

// Well reports whether connections go to v, and not only because nobody is healthy.
func (v Verdict) Well() bool {
	return v.In && !slices.ContainsFunc(v.Causes, func(c standing.Cause) bool { return c.Word != standing.HeldWeak && c.Word != standing.HeldFarther })
}

// Fails reports whether connections go to v in vain, times in a row at least, and
// nobody's health shows it.
func (v Verdict) Fails(times int) bool {
	return v.In && v.Failed != nil && !v.Failed.Fault && v.Failed.Times >= times
}

// InVain reports whether so many failed in a row, held against nobody, that it is clearly
// no accident.
func (a *Attempts) InVain() bool { return !a.Fault && a.Times >= clearly }

// Serves reports whether connections to the destination may be expected to succeed:
// somebody healthy is left, nobody who takes part fails all the time, and no policy that the
// process has denies them.
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

// Sentence says v in plain words.
func (v Verdict) Sentence(now time.Time) string {
	x := v.Verdict
	x.Causes = slices.Clone(v.Causes)
	for i := range x.Causes {
		switch c := &x.Causes[i]; c.Word { // standing says words that it does not know as they are
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

// ago is how long at is past; without a now, which changes all the time, nothing.
func ago(now, at time.Time) string {
	if now.IsZero() {
		return "a while ago"
	}
	return standing.Age(now.Sub(at)) + " ago"
}

// Sentence says which attempts failed, and why, at now.
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
