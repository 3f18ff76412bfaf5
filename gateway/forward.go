package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// maxHops is how many pods are tried for one client. Stock clients never retry,
// so what can be repaired is repaired here.
const maxHops = 3

// visit is one outer stream, from CONNECT to its access-log line.
type visit struct {
	in       *hbone.Incoming
	begun    time.Time
	exported route.Exported
	wish     wish
	lease    lease
	hops     int
	hello    int64 // bytes that went to the pod before the relay began
	relayed  hbone.RelayResult
	answered bool // the pod sent something, if only when the client had left
	connect  time.Duration
	refused  hbone.Reason
	err      error
}

// forward serves one outer CONNECT: authority to exported service, service to
// pod, bytes both ways.
func (g *Gateway) forward(ctx context.Context, in *hbone.Incoming) {
	v := &visit{in: in, begun: time.Now()}
	g.metrics.opened.Inc()
	defer g.finish(v)
	var err error
	if v.exported, err = route.Export(g.store.Current(), g.cfg.Network, in.Authority); err != nil {
		status, reason := exportAnswer(err)
		v.refuse(status, reason, err)
		return
	}
	conn := g.connect(ctx, v)
	if conn == nil {
		return
	}
	defer func() { conn.Close() }()
	stream, err := in.Accept(hbone.Header{hbone.HeaderEndpoint: v.lease.workload.Endpoint.String()})
	if err != nil {
		v.err = err
		g.backends.release(v.lease, health.Neutral, "", time.Now())
		return
	}
	v.connect = time.Since(v.begun)
	conn = g.introduce(ctx, v, stream, conn)
	v.relayed = hbone.RelayNoting(ctx, stream, conn, func() { v.answer(g) })
	v.relayed.ToConn += v.hello
	v.err = v.relayed.Err
	g.backends.release(v.lease, g.judge(v), "silence", time.Now())
}

// answer notes, once, that the pod's node proxy has sent something. A TCP connect
// alone shows only that a kernel is there.
func (v *visit) answer(g *Gateway) {
	if !v.answered {
		v.answered = true
		g.backends.answered(v.lease, time.Now())
	}
}

// connect reaches a pod, or tells the client that it cannot and returns nil.
func (g *Gateway) connect(ctx context.Context, v *visit) *net.TCPConn {
	v.wish.avoid = hbone.ParseAvoid(v.in.Header.Get(hbone.HeaderAvoid))
	v.wish.pin = mesh.EndpointID(hbone.ParseEndpoint(v.in.Header.Get(hbone.HeaderPin)))
	conn := g.reach(ctx, v)
	switch {
	case conn != nil || ctx.Err() != nil: // the client left
	case v.hops > 0:
		v.refuse(503, hbone.ReasonUnreachable, v.err)
	case v.wish.pin != 0:
		v.refuse(503, hbone.ReasonPinnedGone, errors.New("the pinned endpoint is not usable"))
	default:
		v.refuse(503, hbone.ReasonNoEndpoint, errors.New("the service has no ready endpoint on this network"))
	}
	return conn
}

// reach dials pods that were not tried yet until one answers at its address or
// the tries are used up; nil then, or when ctx has ended.
func (g *Gateway) reach(ctx context.Context, v *visit) *net.TCPConn {
	for v.hops < maxHops {
		l, ok := g.backends.choose(v.exported, v.wish, time.Now())
		if !ok {
			return nil
		}
		v.hops++
		v.lease = l
		if l.dazed {
			g.metrics.dazed.Inc()
		}
		conn, err := g.dialPod(ctx, netip.AddrPortFrom(l.workload.Addresses[0], mesh.HBONEPort))
		if err == nil {
			return conn
		}
		v.err = err
		outcome := health.Failure
		if ctx.Err() != nil {
			outcome = health.Neutral // the client left
		}
		g.backends.release(l, outcome, string(hbone.ReasonUnreachable), time.Now())
		if ctx.Err() != nil {
			return nil
		}
		v.wish.tried = append(v.wish.tried, l.workload.Endpoint)
	}
	return nil
}

func (g *Gateway) dialPod(ctx context.Context, addr netip.AddrPort) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: g.cfg.Timeouts.Dial}
	conn, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// ask finds out whether a pod's node proxy answers: a TLS handshake as this
// gateway, because a TCP connect succeeds at a process that hangs. Whoever
// answers with another certificate does answer; that is for the client to refuse.
func (g *Gateway) ask(ctx context.Context, w *mesh.Workload) error {
	cfg, err := g.ids.ClientTLS(ctx, g.self.Identity, []spiffeid.ID{w.Identity}, "h2")
	if err != nil {
		return err
	}
	conn, err := g.dialPod(ctx, netip.AddrPortFrom(w.Addresses[0], mesh.HBONEPort))
	if err != nil {
		return err
	}
	t, err := hbone.ClientTLS(ctx, conn, cfg)
	var wrong *identity.PeerError
	if errors.As(err, &wrong) {
		return nil
	}
	if err != nil {
		return err
	}
	return t.Close()
}

// judge says what a relayed connection tells about the hop. A pod address that
// took the client's hello and never sent a byte back for so long has failed,
// whatever it accepted; everything else is the inner tunnel's business.
func (g *Gateway) judge(v *visit) health.Outcome {
	r := v.relayed
	silent := r.ToConn > 0 && !v.answered
	if silent && (time.Since(v.begun) >= g.cfg.Timeouts.Silence || errors.Is(r.Err, syscall.ECONNRESET)) {
		return health.Failure
	}
	return health.Neutral // an answer was counted when it came
}

func (v *visit) refuse(status int, reason hbone.Reason, err error) {
	v.refused, v.err = reason, err
	h := hbone.Header{hbone.HeaderReason: string(reason)}
	if v.lease.workload != nil {
		h[hbone.HeaderEndpoint] = v.lease.workload.Endpoint.String()
	}
	v.in.Refuse(status, h)
}

// finish counts the visit and writes its one line.
func (g *Gateway) finish(v *visit) {
	result := "ok"
	if v.refused != "" {
		result = string(v.refused)
	} else if v.connect == 0 {
		result = "cancelled"
	}
	g.metrics.closed.WithLabelValues(result).Inc()
	g.metrics.received.Add(float64(v.relayed.ToConn))
	g.metrics.sent.Add(float64(v.relayed.ToStream))
	e := g.log.Info()
	if !e.Enabled() {
		return
	}
	service, port := v.in.Authority, uint16(0)
	if v.exported.Service != nil {
		service, port = v.exported.Service.Hostname, v.exported.Port.Service
	}
	e.Str("direction", "forward").Str("service", strings.ToLower(service)).Uint16("port", port).Str("network", g.cfg.Network)
	if w := v.lease.workload; w != nil {
		e.Stringer("endpoint", w.Endpoint).Str("workload", w.UID)
	}
	trace, _, _ := hbone.ParseTraceparent(v.in.Header.Get(hbone.HeaderTraceparent))
	e.Stringer("peer", v.in.Session.Peer().ID).Int("attempts", v.hops).Str("result", result).Time("started", v.begun).
		Func(func(e *zerolog.Event) {
			if trace != "" {
				e.Str("trace", trace)
			}
		}).
		Float64("connect_ms", ms(v.connect)).Float64("duration_ms", ms(time.Since(v.begun))).
		Int64("bytes_sent", v.relayed.ToStream).Int64("bytes_received", v.relayed.ToConn).AnErr("error", v.err).Msg("connection")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// exportAnswer maps why an authority leads nowhere to what the client hears.
func exportAnswer(err error) (status int, reason hbone.Reason) {
	var re *route.Error
	if !errors.As(err, &re) {
		return 503, hbone.ReasonNoEndpoint
	}
	switch re.Kind {
	case route.UnknownService, route.UnknownPort:
		return 404, hbone.ReasonUnknownService
	case route.NotExported:
		return 403, hbone.ReasonNotExported
	case route.BadAuthority:
		return 400, hbone.ReasonBadAuthority
	}
	return 503, hbone.ReasonNoEndpoint
}
