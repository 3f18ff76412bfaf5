package measure

import (
	"fmt"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Happening is one line of the story that the terminal and the report tell.
type Happening struct {
	At      float64 `json:"at"`
	Kind    string  `json:"kind"` // fault, healed, ejected, readmitted, refused, told or exit
	Process string  `json:"process,omitempty"`
	Text    string  `json:"text"`
}

// maxHappenings bounds the list in drill.json.
const maxHappenings = 600

// happenings tells the arm's story in order.
func (r *Record) happenings() (out []Happening, leftOut int) {
	out = []Happening{}
	for _, o := range r.Outages {
		if o.Effect != 0 {
			out = append(out, Happening{o.Effect.Seconds(), "fault", o.Victims.Process, "fault " + o.Fault.Name + ": " + o.Proof})
		}
		if o.Healed != 0 {
			out = append(out, Happening{o.Healed.Seconds(), "healed", o.Victims.Process, "fault " + o.Fault.Name + " healed"})
		}
	}
	for _, x := range r.Exits {
		out = append(out, Happening{x.At.Seconds(), "exit", x.Process, x.Process + " ended by itself: " + x.Status})
	}
	t := NewTeller(r.Layout)
	for _, e := range r.Events {
		if h, ok := t.Tell(e); ok {
			out = append(out, h)
		}
	}
	slices.SortStableFunc(out, func(a, b Happening) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
	if len(out) > maxHappenings {
		out, leftOut = out[:maxHappenings], len(out)-maxHappenings
	}
	return out, leftOut
}

// Teller turns events into the story's lines and leaves out what repeats: of
// refusals only the first of a pod and port is told, of summaries only those
// that clients' node proxies learn of and whose exceptions changed.
type Teller struct {
	r       *Record
	refused map[string]bool
	told    map[string]string
}

// NewTeller returns one for events of processes in l. It is not safe for
// concurrent use.
func NewTeller(l *scenario.Layout) *Teller {
	return &Teller{r: &Record{Layout: l}, refused: map[string]bool{}, told: map[string]string{}}
}

// Tell returns the line for e; ok is false for what is not worth one.
func (t *Teller) Tell(e Event) (h Happening, ok bool) {
	h = Happening{At: e.At.Seconds(), Process: e.Process}
	switch {
	case e.Kind == OutlierChanged:
		h.Kind = e.Edge
		h.Text = fmt.Sprintf("%s %s %s (%s)", e.Process, e.Edge, t.subject(e), t.why(e))
		return h, true
	case e.AppFailed():
		k := t.pod(e) + ":" + t.r.portName(e.Target)
		if t.refused[k] {
			return h, false
		}
		t.refused[k] = true
		h.Kind, h.Text = "refused", fmt.Sprintf("%s saw %s fail a client: %s", e.Process, k, e.Result)
		return h, true
	case e.Kind == Known:
		return t.tellKnown(e, h)
	}
	return h, false
}

func (t *Teller) why(e Event) string {
	if e.Source == "" {
		return e.Reason
	}
	return e.Reason + ", " + e.Source
}

func (t *Teller) subject(e Event) string {
	switch e.Scope {
	case "network_service":
		return fmt.Sprintf("all of %s on %s, port %s", e.Service, e.Network, t.r.portName(e.Port))
	case "gateway":
		return "gateway " + e.Gateway
	case "hop":
		return "the address of " + t.pod(e)
	}
	return t.pod(e) + ":" + t.r.portName(e.Port)
}

func (t *Teller) pod(e Event) string {
	if p, ok := podOf(t.r.Layout, e); ok {
		return p.Name
	}
	if e.Workload != "" {
		return e.Workload
	}
	return e.Endpoint
}

func (t *Teller) tellKnown(e Event, h Happening) (Happening, bool) {
	var pods []string
	for _, id := range e.Exceptions {
		pods = append(pods, t.pod(Event{Endpoint: id}))
	}
	slices.Sort(pods)
	key := fmt.Sprintf("%s %s %s %d", e.Process, e.Network, e.Service, e.Port)
	now := fmt.Sprintf("%d/%d %s", e.Healthy, e.Ready, strings.Join(pods, ", "))
	before, seen := t.told[key]
	t.told[key] = now
	if role, _ := t.r.role(e.Process); role != "client" {
		return h, false
	}
	if before == now || !seen && len(pods) == 0 {
		return h, false
	}
	h.Kind = "told"
	h.Text = fmt.Sprintf("%s knows %s port %s: %d of %d healthy", e.Process, e.Network, t.r.portName(e.Port), e.Healthy, e.Ready)
	if len(pods) > 0 {
		h.Text += ", not " + strings.Join(pods, ", ")
	}
	return h, true
}
