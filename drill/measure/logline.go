package measure

import (
	"encoding/json"
	"time"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// line is the union of the fields that a drill reads from a process's log.
type line struct {
	Time       time.Time `json:"time"`
	Message    string    `json:"message"`
	Edge       string    `json:"edge"`
	Scope      string    `json:"scope"`
	Source     string    `json:"source"`
	Network    string    `json:"network"`
	Service    string    `json:"service"`
	Port       uint16    `json:"port"`
	Target     uint16    `json:"target"`
	Endpoint   string    `json:"endpoint"`
	Workload   string    `json:"workload"`
	Gateway    string    `json:"gateway"`
	Reason     string    `json:"reason"`
	Direction  string    `json:"direction"`
	Result     string    `json:"result"`
	Started    time.Time `json:"started"`
	Attempts   int       `json:"attempts"`
	Trace      string    `json:"trace"`
	OpenedBy   string    `json:"opened_by"`
	Healthy    int       `json:"healthy"`
	Ready      int       `json:"ready"`
	Exceptions []string  `json:"exceptions"`
	Tried      []Try     `json:"tried"`
	Lines      int       `json:"lines"`
}

// tunnelLine is the message of a gateway's line about a tunnel, which a drill takes
// for the connection that the tunnel was opened for.
const tunnelLine = "tunnel"

// ParseLine reads one line of process's log; ok is false for what a drill does
// not understand, which is no error. Instants become durations since zero.
func ParseLine(process string, data []byte, zero time.Time) (e Event, ok bool) {
	var l line
	if len(data) == 0 || data[0] != '{' || json.Unmarshal(data, &l) != nil {
		return Event{}, false
	}
	if l.Message == tunnelLine {
		l.Message, l.Trace = string(Connection), l.OpenedBy
	}
	switch k := EventKind(l.Message); k {
	case OutlierChanged, Connection, AttemptFailed, Known, LinesLost:
		e.Kind = k
	default:
		return Event{}, false
	}
	e.At, e.Process = l.Time.Sub(zero), process
	e.Edge, e.Scope, e.Source, e.Reason = l.Edge, l.Scope, l.Source, l.Reason
	e.Network, e.Service, e.Port = l.Network, l.Service, l.Port
	e.Endpoint, e.Workload, e.Gateway = l.Endpoint, l.Workload, l.Gateway
	e.Direction, e.Result, e.Tries, e.Trace = l.Direction, l.Result, l.Attempts, l.Trace
	e.Target, e.Healthy, e.Ready, e.Exceptions = l.Target, l.Healthy, l.Ready, l.Exceptions
	e.Tried, e.Lines = l.Tried, l.Lines
	e.TunnelLost = e.Result == "tunnel_lost" || e.Result == "stopped"
	switch e.Result {
	case "ended", "server_ended", "client_reset", "server_reset", "tunnel_lost", "half_closed", "shed", "stopped": // it had been opened; clients tell of cuts
		e.Result = "ok"
	}
	if !l.Started.IsZero() {
		e.Started = l.Started.Sub(zero)
	}
	return e, true
}

// shortLived is how long an uneventful connection must have lived for its log
// line to be kept: only held ones can have been cut.
const shortLived = 100 * time.Millisecond

// Tells reports whether a drill needs e: nearly every connection is one that
// went well at a pod that was never ill, and a long drill has millions.
func Tells(l *scenario.Layout, e Event) bool {
	if e.Kind == AttemptFailed || e.Kind == LinesLost {
		return false
	}
	if e.Kind != Connection || e.Result != "ok" || len(e.Tried) > 0 || e.At-e.Started > shortLived {
		return true
	}
	p, ok := podOf(l, e)
	return ok && e.Direction == "inbound" && l.EverVictim(p.Name)
}

// podOf returns the pod of l that e is about, by endpoint or by workload.
func podOf(l *scenario.Layout, e Event) (scenario.Pod, bool) {
	if p, ok := l.PodByEndpoint(e.Endpoint); ok {
		return p, true
	}
	return l.Pod(e.Workload)
}
