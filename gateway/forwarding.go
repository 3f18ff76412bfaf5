package gateway

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/overload"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// forwarding is one outer stream, from CONNECT to its access-log line.
type forwarding struct {
	in       *hbone.Incoming
	client   admission.Client
	started  time.Time
	exported route.Exported
	to       *picker.Service
	pick     picker.Request
	lease    lease
	dialed   time.Time     // when the connection to the pod was made
	opening  overload.Work // until the CONNECT is answered, or has to wait for its turn at a pod
	attempts int
	failed   []failedAttempt // those that did not reach a pod
	replayed replay
	relayed  hbone.RelayResult
	answered bool // the pod sent something, if only when the client had left
	connect  time.Duration
	result   string        // how it ended besides; empty: by refused and connect
	refused  header.Reason // of our answer other than 200
	err      error
}

// failedAttempt is one pod that was tried in vain.
type failedAttempt struct {
	pod    *mesh.Workload
	reason string // see dialReason and moveReason
	err    error
}

// screen admits an outer CONNECT or refuses it, at once: by the limits of its client, and
// by the time that this process has. One whose client would not come again waits for its
// turn.
func (g *Gateway) screen(in *hbone.Incoming, client admission.Client, session *admission.Session) hbone.Handler {
	f := &forwarding{in: in, client: client, started: time.Now()}
	if in.Authority == header.CheckAuthority || in.Authority == header.SinkAuthority {
		return g.screenCheck(in, client, session)
	}
	g.metrics.opened.Inc()
	admitted, err := session.Stream(f.started, in.Unread, func() { in.Reset(http2.ErrCodeEnhanceYourCalm) })
	if err != nil {
		f.refuse(g.clients.Refused(err, client), header.ReasonOverload, err)
		g.finish(f)
		return nil
	}
	repeats := header.Repeats(in.Header.Get(header.NameRepeats), header.ReasonOverload)
	if repeats {
		if f.opening, err = g.admit(client.Identity); err != nil {
			admitted.Release()
			f.refuse(503, header.ReasonOverload, err)
			g.finish(f)
			return nil
		}
	}
	return func(ctx context.Context, _ *hbone.Incoming) {
		defer g.finish(f)
		defer admitted.Release()
		if !repeats {
			if f.opening, err = g.hold(ctx, client.Identity); err != nil {
				f.unadmitted(ctx, err)
				return
			}
		}
		defer f.opening.Done()
		g.forward(ctx, f)
	}
}

// unadmitted ends one whose turn did not come, or whose client left before.
func (f *forwarding) unadmitted(ctx context.Context, err error) {
	if ctx.Err() != nil {
		f.err = context.Cause(ctx)
		return
	}
	f.refuse(503, header.ReasonOverload, err)
}

// forward serves one outer CONNECT: authority to exported service, service to
// pod, bytes both ways.
func (g *Gateway) forward(ctx context.Context, f *forwarding) {
	var err error
	if f.to, err = g.backends.Resolve(g.store.Current(), f.in.Authority, f.started); err != nil {
		status, reason := exportRefusal(err)
		f.refuse(status, reason, err)
		return
	}
	f.exported = f.to.Exported()
	g.budget.Earn(f.exported.Service.Hostname)
	conn := g.connect(ctx, f)
	if conn == nil {
		return
	}
	defer func() { conn.Close() }()
	chosen := f.lease.Pod
	stream, err := f.in.Accept(hbone.Header{header.NameEndpoint: chosen.Endpoint.String(), header.NameWeight: header.FormatWeight(chosen.Capacity)})
	if err != nil {
		f.err = err
		g.backends.release(f.lease, health.Neutral, "", time.Now())
		return
	}
	f.connect = time.Since(f.started)
	f.opening.Opened()
	f.opening.Done() // from here on it takes no more of this process's time than any other
	if conn, err = g.replayHello(ctx, f, stream, conn); err != nil {
		f.err = err
		stream.Reset(http2.ErrCodeConnect) // it did not end: it was cut off
		conn.SetLinger(0)
		g.backends.release(f.lease, health.Neutral, "", time.Now())
		return
	}
	f.relay(ctx, g, stream, conn)
	if f.distrusted() {
		g.backends.verify(f.lease.Pod, time.Now())
	}
	g.backends.release(f.lease, g.judge(f), "silence", time.Now())
}

// relay carries the tunnel to its end.
func (f *forwarding) relay(ctx context.Context, g *Gateway, stream *hbone.Stream, conn *net.TCPConn) {
	inner := f.lease.inner
	cut := func() { stream.Reset(http2.ErrCodeConnect) }
	closed := g.tunnels.open(f.lease.Pod, g.store.Current, cut)
	inner.expire(g.patience(f), cut)
	f.relayed = hbone.RelayWith(ctx, stream, conn, hbone.RelayOptions{
		OnSend: inner.sends,
		OnReply: func(p []byte) bool {
			if len(p) > 0 {
				f.answer(g)
			}
			return inner.replies(p)
		},
		HalfClosed: g.cfg.Timeouts.HalfClosed,
	})
	f.relayed.ToConn += f.replayed.size
	f.err = f.relayed.Err
	ended := closed()
	switch {
	case inner.expired():
		f.result, f.err = resultNoHandshake, errUnfinished
	case ended:
		f.result, f.err = resultReassigned, errReassigned
	}
}

// late is how late this process may have been while it waited for a pod that is
// still blamed for what did not come: a quarter of timeouts.answer.
func (g *Gateway) late(since time.Time) bool {
	return g.load.Late(since) > g.cfg.Timeouts.Answer/4
}

// answer notes, once, that the pod's node proxy has sent something. A TCP connect
// alone shows only that a kernel is there.
func (f *forwarding) answer(g *Gateway) {
	if !f.answered {
		f.answered = true
		g.backends.answered(f.lease, time.Now())
		g.moves.Earn(f.client.Identity)
		g.doubts.Earn(f.client.Identity)
	}
}

// judge says what a relayed connection tells about the hop. Only a complete
// hello that the pod's address took and did not answer for so long counts
// against it: anything less may be the client's doing. Everything else is the
// inner tunnel's business; an answer was counted when it came, a reset before
// it by replayHello.
func (g *Gateway) judge(f *forwarding) health.Outcome {
	if f.replayed.complete && !f.answered && time.Since(f.replayed.sent) >= g.cfg.Timeouts.Silence && !g.late(f.replayed.sent) {
		return health.Failure
	}
	return health.Neutral
}

// alertMax is what a TLS 1.3 client still sends after its hello when it does not
// believe the server's certificate: a change of cipher spec and an alert. Its
// Finished alone has more.
const alertMax = 48

// distrusted reports whether the client left as one does that does not believe
// the pod's certificate: it answered what the pod sent with an alert, or not.
func (f *forwarding) distrusted() bool {
	r := f.replayed
	return r.complete && f.answered && f.relayed.ToConn-r.size <= alertMax
}

func (f *forwarding) refuse(status int, reason header.Reason, err error) {
	f.refused, f.err = reason, err
	h := hbone.Header{header.NameReason: string(reason)}
	if f.lease.Pod != nil {
		h[header.NameEndpoint] = f.lease.Pod.Endpoint.String()
	}
	if err != nil {
		h[header.NameCause] = header.Cause(err.Error())
	}
	f.in.Refuse(status, h)
}

// finish counts the forwarding and logs it. opened_by is the trace of the connection that
// the tunnel was opened for; later connections in it are unknown to a gateway. The line is
// a warning if an exported service could not be reached, except for repeated attempts of
// one connection: the client's node proxy logs these. Lines of tunnels that served nothing
// are limited by client, see [logging.ByPeer].
func (g *Gateway) finish(f *forwarding) {
	result := f.outcome(g.background)
	g.metrics.closed.WithLabelValues(result).Inc()
	if f.connect > 0 {
		g.metrics.connect.Observe(f.connect.Seconds())
	}
	g.metrics.received.Add(float64(f.relayed.ToConn))
	g.metrics.sent.Add(float64(f.relayed.ToStream))
	trace, _, _ := header.ParseTraceparent(f.in.Header.Get(header.NameTraceparent))
	e := g.log.Info()
	switch f.refused {
	case header.ReasonUnreachable, header.ReasonNoEndpoint:
		if trace == "" || g.firstFailure(f.in.Session.Peer().ID.String(), trace) {
			e = g.log.Warn()
		}
	case header.ReasonOverload: // admission.Guard warns
		e = g.log.Debug()
	}
	if f.connect == 0 || result == resultNoHello || result == resultNoHandshake {
		about := result
		if f.exported.Service != nil {
			about += " " + f.exported.Service.Hostname
		}
		e = g.lines.Sample(e, f.client.Identity, about)
	}
	if !e.Enabled() {
		return
	}
	service, port := f.in.Authority, uint16(0)
	if f.exported.Service != nil {
		service, port = f.exported.Service.Hostname, f.exported.Port.Service
	}
	e.Str("direction", "forward").Str("service", strings.ToLower(service)).Uint16("port", port).Str("network", g.cfg.Network)
	if w := f.lease.Pod; w != nil {
		e.Stringer("endpoint", w.Endpoint).Str("workload", w.UID)
	}
	e.Stringer("peer", f.in.Session.Peer().ID).Stringer("from", f.in.Session.RemoteAddr()).
		Int("attempts", f.attempts).Str("result", result).AnErr("error", f.err).Time("started", f.started)
	if trace != "" {
		e.Str("opened_by", trace)
	}
	e.Float64("connect_ms", ms(f.connect)).Float64("duration_ms", ms(time.Since(f.started))).
		Int64("bytes_sent", f.relayed.ToStream).Int64("bytes_received", f.relayed.ToConn)
	if len(f.failed) > 0 { // last: it is long
		e.Array("tried", tried{g.cfg.Name, f.failed})
	}
	e.Msg("tunnel")
}

// tried writes failed attempts as [{pod, gateway, reason}].
type tried struct {
	gateway string
	failed  []failedAttempt
}

func (t tried) MarshalZerologArray(a *zerolog.Array) {
	for _, f := range t.failed {
		a.Dict(zerolog.Dict().Str("pod", f.pod.UID).Str("gateway", t.gateway).Str("reason", f.reason))
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// exportRefusal maps why an authority leads nowhere to the answer to the client.
func exportRefusal(err error) (status int, reason header.Reason) {
	var re *route.Error
	if !errors.As(err, &re) {
		return 503, header.ReasonNoEndpoint
	}
	switch re.Kind {
	case route.UnknownService, route.UnknownPort:
		return 404, header.ReasonUnknownService
	case route.NotExported:
		return 403, header.ReasonNotExported
	case route.BadAuthority:
		return 400, header.ReasonBadAuthority
	}
	return 503, header.ReasonNoEndpoint
}
