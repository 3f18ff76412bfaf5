package standing

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/health"
)

// Verdict says of one candidate whether it takes part in the choice, and why.
type Verdict struct {
	Kind      string    `json:"kind"`                // pod, share (of another network) or gateway
	Name      string    `json:"name"`                // UID of a pod, a network, the name of a gateway
	Pod       string    `json:"pod,omitempty"`       // namespace/name of a pod whose UID does not say it
	Port      uint16    `json:"port,omitempty"`      // of a pod, where its application listens
	In        bool      `json:"in"`                  // it takes part in the choice
	Rank      int       `json:"rank"`                // higher is preferred
	Weight    float64   `json:"weight"`              // beside others of its rank
	Part      float64   `json:"part"`                // of new connections, 0 to 1, while nobody is busy
	Open      int       `json:"open"`                // connections now
	Causes    []Cause   `json:"causes"`              // what is held against it; empty: nothing
	Endpoints []Cause   `json:"endpoints,omitempty"` // of a share: its endpoints that are left out
	Gateways  []Verdict `json:"gateways,omitempty"`  // of a share
}

// Cause is one thing that is held against a candidate.
type Cause struct {
	Word     Held      `json:"word"`               // what is held against it
	Endpoint string    `json:"endpoint,omitempty"` // of a share's endpoint
	Pod      string    `json:"pod,omitempty"`      // namespace/name of the same, if its UID does not say it
	Port     uint16    `json:"port,omitempty"`     // of the same, where its application listens
	Reason   string    `json:"reason,omitempty"`   // of the failure
	Error    string    `json:"error,omitempty"`    // of the last attempt to reach a gateway that is out
	By       string    `json:"by,omitempty"`       // who says so; empty: this process has seen it
	From     string    `json:"from,omitempty"`     // UID of the captured pod whose connections alone it concerns: those of others get there, as far as is known
	Since    time.Time `json:"since,omitzero"`     // since when
	Until    time.Time `json:"until,omitzero"`     // when it is asked again at the latest
	Health   float64   `json:"health,omitempty"`   // score of what is weak, 0 to 1
	Of       string    `json:"of,omitempty"`       // which connections, of what is weak: a gateway has two scores
}

// Held is what may be held against a candidate.
type Held string

const (
	HeldFailed   Held = "failed"      // it is ejected by own evidence
	HeldProbing  Held = "probing"     // it was, and one connection tries it now
	HeldWeak     Held = "weak"        // some connections failed: its weight is less
	HeldReported Held = "reported"    // others say that it is out
	HeldDoubted  Held = "doubted"     // it owes an answer
	HeldNothing  Held = "nothing"     // a gateway says that it has nobody healthy
	HeldDraining Held = "draining"    // it leaves: it gets new connections while nobody else serves
	HeldSilent   Held = "silent"      // attempts wait for it, and nothing comes
	HeldFarther  Held = "farther"     // somebody healthy is preferred
	HeldPath     Held = "path_failed" // what it delivers of this service failed
)

// OfCell appends what own evidence holds against a cell.
func OfCell[K comparable](list []Cause, c *Cell[K], now time.Time) []Cause {
	if c == nil {
		return list
	}
	st, turn := c.State(now)
	x := Cause{Since: turn.At, Reason: turn.Reason, Until: st.Until}
	switch {
	case st.Phase == health.Ejected:
		x.Word = HeldFailed
	case st.Phase == health.Probing:
		x.Word = HeldProbing
	case c.Score(now).Weight < 1:
		x = Cause{Word: HeldWeak, Health: st.Health}
	default:
		return list
	}
	return append(list, x)
}

// Sentence says v in plain words.
func (v Verdict) Sentence(now time.Time) string {
	name := cmp.Or(v.Pod, v.Name)
	if v.Port != 0 {
		name = fmt.Sprintf("%s:%d", name, v.Port)
	}
	if v.Kind == "share" {
		name = "network " + name
	}
	state := "out"
	if v.In {
		state = fmt.Sprintf("in, %.0f %% of new connections", 100*v.Part)
	}
	var why []string
	for _, c := range v.Causes {
		if !v.In && !c.Since.IsZero() && state == "out" {
			state = "out for " + Age(now.Sub(c.Since))
		}
		why = append(why, c.Sentence(now))
	}
	if len(why) == 0 {
		return name + " " + state
	}
	return name + " " + state + ": " + strings.Join(why, "; ")
}

// Sentence says c in plain words.
func (c Cause) Sentence(now time.Time) string {
	reason := c.Reason
	if reason == "" {
		reason = "left out"
	}
	again := ""
	if c.Until.After(now) {
		again = "; asked again in " + Age(c.Until.Sub(now)) + " at the latest"
	}
	if c.Error != "" && c.Error != c.Reason {
		reason += " (" + c.Error + ")"
	}
	seen := ", seen by this process"
	if c.From != "" {
		seen = ", seen by connections of " + c.From + " alone: does a NetworkPolicy keep them from it?"
	}
	switch c.Word {
	case HeldFailed:
		return reason + seen + again
	case HeldProbing:
		return reason + seen + "; being tried again"
	case HeldWeak:
		which := "some connections"
		if c.Of != "" {
			which += " " + c.Of
		}
		return fmt.Sprintf("%s failed (health %.2f)", which, c.Health)
	case HeldReported:
		return reason + ", seen by " + c.By + c.askedBy()
	case HeldDoubted:
		return "slow to answer, and being asked"
	case HeldNothing:
		return "nobody healthy behind it, as it says itself"
	case HeldDraining:
		return "draining"
	case HeldSilent:
		return "attempts wait, and nothing comes back"
	case HeldFarther:
		return "somebody healthy is preferred"
	case HeldPath:
		return reason + ", what it delivered of this service" + again
	}
	return string(c.Word)
}

// askedBy says when the node proxy beside an endpoint that is out asks it again: that is
// its schedule (docs/decisions/0006), so nobody publishes it.
func (c Cause) askedBy() string {
	switch {
	case !strings.HasPrefix(c.By, Witness):
		return ""
	case c.Reason == "refused" || c.Reason == "reset":
		return "; asked again twice a second"
	case c.Reason == "flapping":
		return "; asked again twice a second, and its answers held back for at most a minute"
	}
	return "" // a hanging one is asked again when its time is up
}

// Witness precedes the name of the node whose node proxy has seen something of a pod of
// its own, in Cause.By.
const Witness = "its node "

// Age is d as people are told it everywhere: in whole seconds, such as 1m19s, and never
// negative, since clocks differ.
func Age(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

// Row is one share of a service.
type Row struct {
	Network string    `json:"network"`          // where the share is
	Service string    `json:"service"`          // hostname
	Port    uint16    `json:"port"`             // of the service
	Ready   uint32    `json:"ready"`            // endpoints, by discovery
	Healthy uint32    `json:"healthy"`          // of those
	Changed time.Time `json:"changed,omitzero"` // when that was last seen to change
	Out     []Out     `json:"out"`              // endpoints that are ready and left out
}

// Out is an endpoint that is ready and left out.
type Out struct {
	Endpoint string    `json:"endpoint"`          // a workload's UID, or an endpoint ID
	Pod      string    `json:"pod,omitempty"`     // namespace/name of the workload, if its UID does not say it
	Reason   string    `json:"reason,omitempty"`  // of the failure
	Since    time.Time `json:"since,omitzero"`    // since when it is out
	Witness  string    `json:"witness,omitempty"` // who has seen it
	Until    time.Time `json:"until,omitzero"`    // when it is asked again at the latest
}
