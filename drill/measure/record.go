package measure

import (
	"cmp"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Record is everything that was seen in one arm. All instants are durations
// since the first instant of traffic, on the one clock of the machine; those
// before it are negative.
type Record struct {
	Layout   *scenario.Layout
	Arm      scenario.Arm
	Attempts []Attempt // in the order of the schedule
	Outages  []Outage  // in the order of the scenario's faults
	Events   []Event   // what the processes logged, by time
	Exits    []Exit    // processes that ended though nobody killed them
	// Logged is what each process wrote from the first instant of traffic on. Most
	// of those lines are not kept as events.
	Logged map[string]Lines
	// Usage is what each process took while traffic ran.
	Usage []Usage
	// Others is how many processors other programs used on average while traffic ran.
	Others float64
	// Doubts are reasons not to trust the arm, in words.
	Doubts []string
}

// Attempt is one connection of a client.
type Attempt struct {
	scenario.Arrival
	Started  time.Duration // when the client really began; late if after At
	Done     time.Duration // first answer, or failure
	Pod      string        // who answered; empty if it failed, or was broken off before
	Error    string        // why the first exchange failed; empty if it did not
	CutAt    time.Duration // when a connection broke that had been answered
	CutError string        // how it broke; empty if it did not
	// Aborted is when the client broke it off as planned; zero if it did not, or
	// the connection failed or was cut before.
	Aborted time.Duration
	// Refused is whether an overloaded node proxy refused it, of the surge: that
	// is no failure. Arrange knows it.
	Refused bool
	// Gateway is what the connection ran through, if a log says so.
	Gateway string
}

// Failed reports whether the first exchange did not succeed, and not because an
// overloaded node proxy refused it in the surge.
func (a Attempt) Failed() bool { return a.Error != "" && !a.Refused }

// Over reports whether it is known what became of the first exchange.
func (a Attempt) Over() bool { return a.Pod != "" || a.Error != "" || a.Aborted != 0 }

// Answered reports whether the first exchange succeeded.
func (a Attempt) Answered() bool { return a.Pod != "" && a.Error == "" }

// end is when the connection ended, as far as the client knows: the break, the
// end of its time, or the first exchange if it was not held.
func (a Attempt) end() time.Duration {
	if a.CutError != "" {
		return a.CutAt
	}
	return max(a.Done, a.At+a.Hold, a.Aborted)
}

// Latency is the time from the intended start to the first answer.
func (a Attempt) Latency() time.Duration { return a.Done - a.At }

// Outage is one fault as it really happened. Times are zero while unknown.
type Outage struct {
	Fault   scenario.Fault
	Victims scenario.Victims
	Begin   time.Duration // the injection began
	Effect  time.Duration // it had taken effect, as the injector's own probe showed
	Heal    time.Duration // healing began
	Healed  time.Duration // healing was done; zero if it never was
	Proof   string        // how the effect was proved, in words
	Downs   []Window      // of a flap: when the pods refused, as the injector ordered
}

// over returns when the outage stopped: the end of time if it never did.
func (o Outage) over(t time.Duration) time.Duration {
	if t == 0 {
		return 1<<63 - 1
	}
	return t
}

// ill returns when the outage lasted: from the begin of the injection to the
// begin of healing, or to the end of the drill. It is empty if the outage never
// took effect.
func (o Outage) ill(end time.Duration) Window {
	if o.Effect == 0 {
		return Window{Name: o.Fault.Name}
	}
	return Window{o.Fault.Name, o.Begin, min(o.over(o.Heal), end)}
}

// spells are the spans in which it was ill without a pause: more than one if it
// flapped.
func (o Outage) spells(end time.Duration) []Window {
	if o.Effect != 0 && len(o.Downs) > 0 {
		return o.Downs
	}
	return []Window{o.ill(end)}
}

// Exit is the end of a process that nobody asked for.
type Exit struct {
	At      time.Duration
	Process string
	Status  string
}

// Event is one line of a process's log that a drill understands.
type Event struct {
	At      time.Duration
	Process string
	Kind    EventKind

	Edge       string // of OutlierChanged: ejected or readmitted
	Scope      string // of OutlierChanged: endpoint, hop, network_service or gateway
	Source     string // of OutlierChanged
	Network    string
	Service    string
	Port       uint16 // target port of an endpoint, else the service port
	Target     uint16 // of Connection: target port, if known
	Endpoint   string // 16 hexadecimal digits
	Workload   string // uid, if known
	Gateway    string // if known
	Reason     string
	Direction  string        // of Connection
	Result     string        // of Connection
	Started    time.Duration // of Connection
	Tries      int           // of Connection
	Trace      string        // of Connection: the same on every hop
	Healthy    int           // of Known
	Ready      int           // of Known
	Exceptions []string      // of Known
	Tried      []Try         // of Connection: where it had failed before
	Lines      int           // of LinesLost
	TunnelLost bool          // of Connection: it was open when a hop on its way ended
}

// Try is one attempt of a connection that did not succeed.
type Try struct {
	Pod     string `json:"pod"`
	Gateway string `json:"gateway"`
	Reason  string `json:"reason"`
}

// Since returns e with its instants counted from t later.
func (e Event) Since(t time.Duration) Event {
	e.At -= t
	e.Started -= t
	return e
}

// EventKind is what an Event tells.
type EventKind string

// The kinds of events, by the message of the log line.
const (
	OutlierChanged EventKind = "outlier changed"
	Connection     EventKind = "connection"
	AttemptFailed  EventKind = "attempt failed"
	Known          EventKind = "known"
	LinesLost      EventKind = "log lines lost"
)

// AppFailed reports whether e is a client's connection that reached the pod's node
// and that the application there did not accept. Probes write no such line.
func (e Event) AppFailed() bool {
	return e.Kind == Connection && e.Direction == "inbound" &&
		(e.Result == "refused" || e.Result == "timeout" || e.Result == "reset")
}

// Window is a span of the arm's time.
type Window struct {
	Name     string
	From, To time.Duration // To is not part of it
}

// Meets reports whether what lasted from one instant to another was, for at
// least an instant of it, in w.
func (w Window) Meets(from, to time.Duration) bool {
	return from < w.To && to >= w.From && w.From < w.To
}

// Has reports whether t is in w.
func (w Window) Has(t time.Duration) bool { return t >= w.From && t < w.To }

// Phases returns baseline, fault and healed as they happened: from the first
// injection or the surge to the last healing or the surge's end is "fault", or
// "surge" without a fault. Empty ones are left out.
func (r *Record) Phases() []Window {
	end := r.Layout.Scenario.Duration
	first, last := end, time.Duration(0)
	for _, o := range r.Outages {
		first = min(first, o.Begin)
		last = max(last, min(o.over(o.Heal), end))
	}
	middle := "fault"
	if g := r.Layout.Scenario.Traffic.Surge; g.Given() {
		first, last = min(first, g.At), max(last, g.Until)
		if len(r.Outages) == 0 {
			middle = "surge"
		}
	}
	all := []Window{{"baseline", 0, first}, {middle, first, last}, {"healed", max(first, last), end}}
	return slices.DeleteFunc(all, func(w Window) bool { return w.From >= w.To })
}

// window resolves the name of a phase or a fault; "run" and "" are all of it.
func (r *Record) window(name string) Window {
	for _, w := range r.Phases() {
		if w.Name == name {
			return w
		}
	}
	for _, o := range r.Outages {
		if o.Fault.Name == name {
			return Window{name, o.Effect, min(o.over(o.Heal), r.Layout.Scenario.Duration)}
		}
	}
	if g := r.Layout.Scenario.Traffic.Surge; name == "surge" && g.Given() {
		return surgeOf(r)
	}
	if name == "" || name == "run" {
		return Window{"run", 0, r.Layout.Scenario.Duration}
	}
	return Window{Name: name}
}

// settled returns w without its first moments, in which shares move.
func (r *Record) settled(w Window) Window {
	if w.Name != "baseline" && w.Name != "run" {
		w.From = min(w.From+r.Layout.Scenario.Settle, w.To)
	}
	return w
}

// span is the phase that args select, from `after` into it on.
func (r *Record) span(args map[string]string) Window {
	w := r.window(args["phase"])
	d, _ := time.ParseDuration(args["after"])
	w.From = min(w.From+d, w.To)
	return w
}

// Arrange puts the events in order of time and finds out which connections were
// refused for overload, and, of those that were cut, which gateway they ran
// through.
func (r *Record) Arrange() {
	slices.SortStableFunc(r.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	r.markRefused()
	through := map[string]string{} // trace → gateway that logged the connection's end
	for _, e := range r.Events {
		if e.Kind == Connection && e.Direction == "forward" && e.Trace != "" {
			through[e.Trace] = e.Process
		}
	}
	for i := range r.Attempts {
		if a := &r.Attempts[i]; a.CutError != "" {
			a.Gateway = r.gatewayOf(*a, through)
		}
	}
}

// gatewayOf returns the gateway that a cut connection ran through, or "" if
// none says so, as one that was killed does not. The line of the client's node
// proxy is found by its place, pod, port, begin and end.
func (r *Record) gatewayOf(a Attempt, through map[string]string) string {
	const near = time.Second
	node, port := r.Layout.Clients[a.Client].Node, r.Layout.Scenario.Ports()[a.Port].Port
	best, found := near, Event{}
	for _, e := range r.Events {
		if e.Kind != Connection || e.Direction != "outbound" || e.Process != node || e.Port != port || (e.At-a.CutAt).Abs() > near/4 {
			continue
		}
		p, ok := podOf(r.Layout, e)
		if d := (e.Started - a.Started).Abs(); ok && p.Name == a.Pod && d < best {
			best, found = d, e
		}
	}
	if found.Gateway != "" {
		return found.Gateway
	}
	return through[found.Trace]
}
