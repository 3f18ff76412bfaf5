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
	opening  overload.Work // until the CONNECT is answered, or waits for its turn at a pod
	attempts int
	failed   []failedAttempt // attempts that did not reach a pod
	replayed replay
	relayed  hbone.RelayResult
	answered bool // the pod sent data, possibly after the client closed
	connect  time.Duration
	result   string        // overrides the result; empty: it follows from refused and connect
	refused  header.Reason // reason of a response other than 200
	err      error
}

// failedAttempt is one failed attempt to reach a pod.
type failedAttempt struct {
	pod    *mesh.Workload
	reason string // see dialReason and moveReason
	err    error
}

// screen admits or refuses an outer CONNECT without waiting: by the limits of its client, and by the
// load of this process. A CONNECT of a client that does not retry waits for its turn instead.
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

// unadmitted closes a CONNECT that timed out waiting for its turn, or that the client cancelled.
func (f *forwarding) unadmitted(ctx context.Context, err error) {
	if ctx.Err() != nil {
		f.err = context.Cause(ctx)
		return
	}
	f.refuse(503, header.ReasonOverload, err)
}

// forward serves one outer CONNECT. It resolves the authority to an exported service, connects to a
// pod and relays bytes in both directions.
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
	f.opening.Done() // from here on it costs no more than any established connection
	if conn, err = g.replayHello(ctx, f, stream, conn); err != nil {
		f.err = err
		stream.Reset(http2.ErrCodeConnect) // the stream was cut, not closed
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

// relay relays the tunnel until it closes.
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

// late reports whether this process was delayed by more than a quarter of timeouts.answer since then.
// A missing answer does not count against a pod in that case.
func (g *Gateway) late(since time.Time) bool {
	return g.load.Late(since) > g.cfg.Timeouts.Answer/4
}

// answer records, once, that the pod's node proxy has sent data. A TCP connect alone shows only that
// the kernel is up.
func (f *forwarding) answer(g *Gateway) {
	if !f.answered {
		f.answered = true
		g.backends.answered(f.lease, time.Now())
		g.moves.Earn(f.client.Identity)
		g.doubts.Earn(f.client.Identity)
	}
}

// judge returns the health outcome of a relayed connection for the hop. Only a complete hello that
// the pod's address received and did not answer within timeouts.silence counts as a failure. An
// incomplete hello may be caused by the client, and later errors belong to the inner tunnel.
// An answer was counted when it came; replayHello counted a reset before it.
func (g *Gateway) judge(f *forwarding) health.Outcome {
	if f.replayed.complete && !f.answered && time.Since(f.replayed.sent) >= g.cfg.Timeouts.Silence && !g.late(f.replayed.sent) {
		return health.Failure
	}
	return health.Neutral
}

// alertMax is the most bytes that a TLS 1.3 client sends after its hello to reject the server's
// certificate. They are a change of cipher spec and an alert. A Finished message alone is longer.
const alertMax = 48

// distrusted reports whether the client closed as if it rejected the pod's certificate: after the
// pod's answer it sent at most an alert.
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

// finish counts and logs the forwarding. opened_by is the trace of the connection that the tunnel was
// opened for; a gateway does not see later connections in the tunnel. The line is a warning if an
// exported service was unreachable, except for repeated attempts of one connection: the client's
// node proxy logs these. Lines of tunnels that served nothing are limited by client, see
// [logging.ByPeer].
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

// exportRefusal maps a resolution error to the status and reason sent to the client.
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
