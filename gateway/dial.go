package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// maxAttempts is how many pods are tried for one client. Stock clients never
// retry, so what can be repaired is repaired here.
const maxAttempts = 3

// Why a pod was given up; the values of reason in logs and metrics.
const (
	attemptRefused     = "connect_refused" // the TCP connection to the node proxy at the pod's address was refused; the application was not involved
	attemptReset       = "reset"           // the connection to the pod's address was reset before the pod answered
	attemptTimeout     = "timeout"         // the TCP connect to the pod's address timed out
	attemptUnreachable = "unreachable"     // the pod's address is unreachable for another cause, which is in the error
	attemptSilence     = "silence"         // the pod received the TLS hello and did not answer
	attemptLocal       = "local"           // the dial failed on this host, such as for lack of a descriptor, port, route or permission
)

// connect reaches a pod, or tells the client that it cannot and returns nil.
func (g *Gateway) connect(ctx context.Context, f *forwarding) *net.TCPConn {
	f.pick.Avoid = header.ParseAvoid(f.in.Header.Get(header.NameAvoid))
	f.pick.Pin = mesh.EndpointID(header.ParseEndpoint(f.in.Header.Get(header.NamePin)))
	f.pick.Crowded = func(id mesh.EndpointID) bool { return g.inner.queue.Crowded(id, f.client.Identity) }
	conn := g.dialPods(ctx, f)
	switch {
	case conn != nil:
	case ctx.Err() != nil: // the client left
		f.err = context.Cause(ctx)
	case localfault.Is(f.err), errors.Is(f.err, errCrowded): // another gateway may serve it
		f.refuse(503, header.ReasonOverload, f.err)
	case f.attempts > 0:
		f.refuse(503, header.ReasonUnreachable, f.err)
	case f.pick.Pin != 0:
		g.refusePin(f)
	default:
		f.refuse(503, header.ReasonNoEndpoint, errors.New("the service has no ready endpoint on this network"))
	}
	return conn
}

// refusePin answers a client whose pinned endpoint was not chosen. That it is slow to answer
// somebody is not held against it: it may have much to do.
func (g *Gateway) refusePin(f *forwarding) {
	if w := g.backends.Owes(f.to, f.pick.Pin, time.Now()); w != nil {
		f.lease.Pod = w
		f.refuse(503, header.ReasonOverload, errors.New("the pinned endpoint is slow to answer, and others are not"))
		return
	}
	f.refuse(503, header.ReasonPinnedGone, errors.New("the pinned endpoint is not usable"))
}

// dialPods dials pods that were not tried yet until one accepts, the attempts or
// the service's retry budget are used up, or the client has left; nil then.
func (g *Gateway) dialPods(ctx context.Context, f *forwarding) *net.TCPConn {
	for f.attempts < maxAttempts && ctx.Err() == nil {
		if n := len(f.failed); n > 0 && !g.mayRepeat(f, f.failed[n-1].reason) {
			return nil
		}
		l, ok := g.backends.choose(f.to, f.pick, time.Now())
		if !ok {
			return nil
		}
		var err error
		if l.inner, err = g.inner.admit(ctx, f, l.Pod); err != nil {
			f.err = err
			g.backends.release(l, health.Neutral, "", time.Now())
			return nil
		}
		f.attempts++
		f.lease = l
		if l.Dazed {
			g.metrics.dazed.Inc()
		}
		started := time.Now()
		conn, err := g.dialPod(ctx, l.Pod)
		if err == nil {
			f.dialed = time.Now()
			g.boundMemory(conn, false)
			return conn
		}
		f.err = err
		if ctx.Err() != nil { // the client left, which says nothing about the pod
			g.backends.release(l, health.Neutral, "", time.Now())
			return nil
		}
		outcome := health.Failure
		if localfault.Is(err) || isTimeout(err) && g.late(started) {
			outcome = health.Neutral
		}
		g.backends.release(l, outcome, string(header.ReasonUnreachable), time.Now())
		g.attemptFailed(f, l.Pod, dialReason(err), err)
	}
	return nil
}

// attemptFailed takes a pod out of this client's choice.
func (g *Gateway) attemptFailed(f *forwarding, w *mesh.Workload, reason string, err error) {
	f.failed = append(f.failed, failedAttempt{w, reason, err})
	f.pick.Exclude = append(f.pick.Exclude, w.Endpoint)
	g.log.Debug().Str("service", f.exported.Service.Hostname).Str("workload", w.UID).Stringer("endpoint", w.Endpoint).
		Str("reason", reason).Err(err).Msg("attempt failed")
}

// mayRepeat takes one repeat out of the service's budget.
func (g *Gateway) mayRepeat(f *forwarding, reason string) bool {
	cost := retrybudget.AfterRefusal
	if reason == attemptTimeout || reason == attemptSilence {
		cost = retrybudget.AfterTimeout
	}
	ok := g.budget.Spend(f.exported.Service.Hostname, cost)
	if !ok {
		g.metrics.noBudget.Inc()
	}
	return ok
}

// boundMemory bounds what the kernel holds for conn if the memory of this process is
// limited.
func (g *Gateway) boundMemory(conn net.Conn, near bool) {
	if g.cfg.Memory != nil {
		tcp.BoundMemory(conn, near)
	}
}

func dialReason(err error) string {
	switch {
	case localfault.Is(err):
		return attemptLocal
	case errors.Is(err, syscall.ECONNREFUSED):
		return attemptRefused
	case errors.Is(err, syscall.ECONNRESET):
		return attemptReset
	case isTimeout(err):
		return attemptTimeout
	}
	return attemptUnreachable
}

// dialPod opens a TCP connection to the pod's node proxy.
func (g *Gateway) dialPod(ctx context.Context, w *mesh.Workload) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: g.cfg.Timeouts.Dial}
	if from := g.cfg.DialFrom; from.IsValid() && from.Is4() == w.Addresses[0].Is4() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		d.Control = latePort
	}
	to := netip.AddrPortFrom(w.Addresses[0], mesh.HBONEPort)
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, localfault.Dialed(d, to, withoutPort0(err))
	}
	return conn.(*net.TCPConn), nil
}

// withoutPort0 names the source of a dial that had not got as far as having a port by its
// address alone: port 0 looks like a mistake in the configuration.
func withoutPort0(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if from, ok := op.Source.(*net.TCPAddr); ok && from != nil && from.Port == 0 {
			op.Source = &net.IPAddr{IP: from.IP, Zone: from.Zone}
		}
	}
	return err
}

// latePort lets the kernel choose the source port when it knows the destination:
// otherwise all pods together could have as many connections as there are ports
// (IP_BIND_ADDRESS_NO_PORT in ip(7)).
func latePort(_, _ string, c syscall.RawConn) error {
	var set error
	err := c.Control(func(fd uintptr) {
		set = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
	})
	return errors.Join(err, set)
}

// ask finds out whether a pod's node proxy answers: a TLS handshake as this
// gateway, because a TCP connect succeeds at a process that hangs. Whoever proves
// to be somebody else of this mesh does answer: that is for the client to refuse,
// who may know better. A certificate that cannot be believed, every client would
// refuse.
func (g *Gateway) ask(ctx context.Context, w *mesh.Workload) error {
	cfg, err := g.ids.ClientTLS(ctx, g.self.Identity, []spiffeid.ID{w.Identity}, "h2")
	if err != nil {
		return err
	}
	conn, err := g.dialPod(ctx, w)
	if err != nil {
		return err
	}
	t, err := hbone.ClientTLS(ctx, conn, cfg)
	if err == nil {
		return t.Close()
	}
	if identity.ReasonOf(err) == identity.ReasonIdentity {
		g.refusals.Note("pod", w.UID, conn.RemoteAddr(), err)
	}
	var wrong *identity.PeerError
	if errors.As(err, &wrong) && !identity.Untrusted(err) {
		return nil
	}
	return err
}
