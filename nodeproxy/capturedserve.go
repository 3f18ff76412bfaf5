package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// captured serves what rules lead here of one workload.
func (p *Proxy) captured(h *captured) serve {
	return func(ctx context.Context, app *net.TCPConn) func(context.Context) {
		to, err := capture.Original(app)
		if err != nil {
			p.log.Debug().Str("workload", h.uid).Stringer("from", app.RemoteAddr()).Err(err).Msg("bad captured connection")
			reset(app)
			return nil
		}
		if !p.carries(ctx, h, to) {
			return p.passOn(h, app, to)
		}
		return p.carry(ctx, app, h.uid, flowTo(to.Addr().String(), to.Port()), nil, nil, nil)
	}
}

// dialer returns how connections are opened from where a workload is: in its network namespace, or
// where this process is if it is not captured.
func (c *captures) dialer(uid string, keepAlive time.Duration, otherwise dialTCP) dialTCP {
	if c == nil {
		return otherwise
	}
	h := c.get(uid)
	if h == nil {
		return func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) {
			return nil, &notCapturedError{uid}
		}
	}
	return dialFrom(h.place.ns, keepAlive)
}

// notCapturedError is that of a connection from or to a pod whose namespace this process is not in.
type notCapturedError struct{ uid string }

func (e *notCapturedError) Error() string {
	return "this node proxy is not in the network namespace of workload " + e.uid
}

// Unwrap makes it a fault of this host, and not of the pod's.
func (e *notCapturedError) Unwrap() error { return syscall.EACCES }
