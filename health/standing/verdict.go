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
	Kind      string    `json:"kind"`                // pod, share (a remote service) or gateway
	Name      string    `json:"name"`                // UID of a pod, network of a remote service, or name of a gateway
	Pod       string    `json:"pod,omitempty"`       // namespace/name of a pod, if not in its UID
	Port      uint16    `json:"port,omitempty"`      // port of a pod's application
	In        bool      `json:"in"`                  // it receives new connections
	Rank      int       `json:"rank"`                // priority; higher is preferred
	Weight    float64   `json:"weight"`              // weight among candidates of its rank
	Part      float64   `json:"part"`                // share of new connections, 0 to 1, while no candidate is busy
	Open      int       `json:"open"`                // open connections
	Causes    []Cause   `json:"causes"`              // reasons against it; empty if there are none
	Endpoints []Cause   `json:"endpoints,omitempty"` // of a remote service: its ejected endpoints
	Gateways  []Verdict `json:"gateways,omitempty"`  // of a remote service
}

// Cause is one thing that is held against a candidate.
type Cause struct {
	Word     Held      `json:"word"`               // reason against it
	Endpoint string    `json:"endpoint,omitempty"` // endpoint of a remote service
	Pod      string    `json:"pod,omitempty"`      // namespace/name of its pod, if not in the UID
	Port     uint16    `json:"port,omitempty"`     // port of its application
	Reason   string    `json:"reason,omitempty"`   // reason of the failure
	Error    string    `json:"error,omitempty"`    // error of the last attempt to reach a gateway that is out
	By       string    `json:"by,omitempty"`       // source of the observation; empty for this process
	From     string    `json:"from,omitempty"`     // UID of the only captured pod affected; connections of other pods work, as far as known
	Since    time.Time `json:"since,omitzero"`     // since when
	Until    time.Time `json:"until,omitzero"`     // next probe at the latest
	Health   float64   `json:"health,omitempty"`   // of weak: score, 0 to 1
	Of       string    `json:"of,omitempty"`       // of weak: affected connections; a gateway has two scores
}

// Held is what may be held against a candidate.
type Held string

const (
	HeldFailed   Held = "failed"      // ejected because of own observations
	HeldProbing  Held = "probing"     // was ejected; one connection tries it now
	HeldWeak     Held = "weak"        // some connections failed; its weight is lower
	HeldReported Held = "reported"    // reported as ejected by another process
	HeldDoubted  Held = "doubted"     // slow to answer, and being probed
	HeldNothing  Held = "nothing"     // no healthy pod behind it, as reported by the gateway
	HeldDraining Held = "draining"    // draining; new connections only while no other candidate serves
	HeldSilent   Held = "silent"      // attempts are waiting, and no response is received
	HeldFarther  Held = "farther"     // a healthy candidate is preferred
	HeldPath     Held = "path_failed" // connections to this service through it failed
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
	Network string    `json:"network"`          // network of the endpoints
	Service string    `json:"service"`          // hostname
	Port    uint16    `json:"port"`             // service port
	Ready   uint32    `json:"ready"`            // ready endpoints, per discovery of that network
	Healthy uint32    `json:"healthy"`          // healthy ones of these
	Changed time.Time `json:"changed,omitzero"` // when these numbers were last seen to change
	Out     []Out     `json:"out"`              // ready endpoints that are ejected
}

// Out is an endpoint that is ready and left out.
type Out struct {
	Endpoint string    `json:"endpoint"`          // workload UID, or endpoint ID
	Pod      string    `json:"pod,omitempty"`     // namespace/name of the workload, if not in its UID
	Reason   string    `json:"reason,omitempty"`  // reason of the failure
	Since    time.Time `json:"since,omitzero"`    // time of the ejection
	Witness  string    `json:"witness,omitempty"` // observer of the failure
	Until    time.Time `json:"until,omitzero"`    // next probe at the latest
}
