package nodeproxy

import (
	"errors"
	"net/netip"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// access is what the one log line of a connection says, inbound or outbound.
type access struct {
	direction      string // inbound or outbound, as this node sees it
	started        time.Time
	connect        time.Duration // until the far application had accepted; zero: never
	authority      string        // inbound: what was asked for, if no service was found
	service        string
	port, target   uint16 // service port and target port
	network        string
	gateway        string // name of the gateway it went through; empty: none
	transport      string // of the session with that gateway: lines.TCP or lines.QUIC; empty: no tunnel was opened through one
	endpoint       mesh.EndpointID
	workload       string
	peer           spiffeid.ID
	trace          string
	source         string       // outbound: the local workload
	tried          failedPlaces // outbound: where it had failed before
	attempts       int
	hedges         int            // outbound: how often an attempt was withdrawn, and another one made elsewhere
	sent, received int64          // bytes towards and from the mesh (outbound) or the peer (inbound)
	opened         bool           // both applications had it; result says how it ended
	policy         string         // inbound: the policies that have denied it
	plain          bool           // carried as it is, in no tunnel
	client         netip.AddrPort // inbound and plain: whose connection it is
	result         string         // see ending; of one that was not opened an isthmus-reason, or one of the failure reasons
	err            error
}

// failed reports whether the line is the one useful line of a failure: an application
// of this node did not get its connection, or lost it, and neither application had
// ended it. What a pod of this node refused is told by the node of the client.
func (a *access) failed() bool {
	if a.direction != "outbound" {
		return false
	}
	if a.opened {
		return a.result == resultTunnelLost || a.result == resultStopped
	}
	if a.plain { // the mesh has nothing to do with it
		return a.result == string(header.ReasonOverload)
	}
	return a.result != reasonCancelled
}

// failedPlace is where attempts failed for one reason.
type failedPlace struct {
	pod, gateway, reason string
	cause                string // of the last of them
	times                int
}

// failedPlaces is written as [{pod, gateway, reason, times, error}]; times is left
// out if it is one.
type failedPlaces []failedPlace

// maxPlaces is how many places a line names; the number of attempts is beside them.
const maxPlaces = 16

// add notes one attempt that failed at p.
func (f *failedPlaces) add(p failedPlace) {
	for i, q := range *f {
		if q.pod == p.pod && q.gateway == p.gateway && q.reason == p.reason {
			(*f)[i].cause = p.cause
			(*f)[i].times++
			return
		}
	}
	if len(*f) < maxPlaces {
		p.times = 1
		*f = append(*f, p)
	}
}

func (f failedPlaces) MarshalZerologArray(a *zerolog.Array) {
	for _, p := range f {
		d := zerolog.Dict()
		if p.pod != "" {
			d.Str("pod", p.pod)
		}
		d.Str("gateway", p.gateway).Str("reason", p.reason)
		if p.times > 1 {
			d.Int("times", p.times)
		}
		a.Dict(d.Str("error", p.cause))
	}
}

// refuse answers with a status and reason and remembers them.
func (a *access) refuse(in *hbone.Incoming, status int, reason header.Reason, id mesh.EndpointID, err error) {
	a.result, a.err = string(reason), err
	h := hbone.Header{header.NameReason: string(reason)}
	if id != 0 {
		h[header.NameEndpoint] = id.String()
	}
	if err != nil {
		h[header.NameCause] = header.Cause(err.Error())
	}
	in.Refuse(status, h)
}

// deny answers as ztunnel does to what policies do not allow. The client is not told which.
func (a *access) deny(in *hbone.Incoming, id mesh.EndpointID, d policy.Decision) {
	a.refuse(in, 401, header.ReasonDenied, id, errDenied)
	a.denied(d)
}

var errDenied = errors.New("a policy does not allow it: the access log of the node proxy of that pod names it")

// denied remembers who has denied it.
func (a *access) denied(d policy.Decision) {
	a.result, a.policy, a.err = string(header.ReasonDenied), d.By(), errors.New(d.String())
}

// cause is the peer that can repeat the line: the local workload that opens connections,
// or the peer that opens them to a local workload.
func (a *access) cause() string {
	switch {
	case a.direction == "outbound":
		return a.source
	case a.peer.IsZero():
		return a.client.Addr().String()
	}
	return a.peer.String()
}

// finish counts the connection and logs it. Lines of connections that were never open are
// limited by peer, see [logging.ByPeer].
func (p *Proxy) finish(a *access) {
	reporter := "source"
	if a.direction == "inbound" {
		reporter = "destination"
	}
	p.metrics.closed.WithLabelValues(reporter, a.result).Inc()
	if a.connect > 0 {
		p.metrics.connect.Observe(a.connect.Seconds())
	}
	p.metrics.sent.WithLabelValues(reporter).Add(float64(a.sent))
	p.metrics.received.WithLabelValues(reporter).Add(float64(a.received))
	e := p.log.Info()
	switch {
	case a.direction == "inbound" && a.result == string(header.ReasonOverload):
		e = p.log.Debug() // admission.Guard warns
	case a.failed():
		e = p.log.Warn()
	}
	if !a.opened {
		about := a.result
		if a.service != "" {
			about += " " + a.service
		}
		e = p.peerLines.Sample(e, a.cause(), about)
	}
	if !e.Enabled() {
		return
	}
	service := a.service
	if service == "" {
		service = a.authority
	}
	e.Str("direction", a.direction).Str("service", service).Uint16("port", a.port)
	if a.target != 0 {
		e.Uint16("target", a.target)
	}
	if a.network != "" {
		e.Str("network", a.network)
	}
	if a.gateway != "" {
		e.Str("gateway", a.gateway)
	}
	if a.transport != "" {
		e.Str("transport", a.transport)
	}
	if a.endpoint != 0 {
		e.Stringer("endpoint", a.endpoint)
	}
	if a.workload != "" {
		e.Str("workload", a.workload)
	}
	local := a.source
	if a.direction == "inbound" {
		local = a.workload
	}
	if w := p.store.Current().Workload(local); w != nil {
		e.Stringer("identity", w.Identity)
	}
	if !a.peer.IsZero() {
		e.Stringer("peer", a.peer)
	}
	if a.trace != "" {
		e.Str("trace", a.trace)
	}
	if a.source != "" {
		e.Str("source", a.source)
	}
	if a.plain {
		e.Bool("plain", true)
	}
	if a.client.IsValid() {
		e.Stringer("client", a.client)
	}
	if a.policy != "" {
		e.Str("policy", a.policy)
	}
	if a.hedges > 0 {
		e.Int("hedges", a.hedges)
	}
	e.Int("attempts", a.attempts).Str("result", a.result).AnErr("error", a.err).Time("started", a.started).
		Float64("connect_ms", ms(a.connect)).Float64("duration_ms", ms(time.Since(a.started))).
		Int64("bytes_sent", a.sent).Int64("bytes_received", a.received)
	if len(a.tried) > 0 { // last: it is long
		e.Array("tried", a.tried)
	}
	e.Msg("connection")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
