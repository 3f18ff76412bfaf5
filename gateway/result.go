package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Results of tunnels besides the reasons of refusals. A tunnel carries the inner
// session of a client, with all its connections, and what applications do in it is
// encrypted: no result speaks of an application.
const (
	resultEnded       = "ended"        // the client ended it
	resultServerEnded = "server_ended" // the pod's side ended it first: its node proxy drained, or was killed
	resultCancelled   = "cancelled"    // the client left before it was answered
	resultNoHello     = "no_hello"     // the client sent no TLS hello in time
	resultNoHandshake = "no_handshake" // the client's TLS handshake with the pod was not over in time
	resultClientReset = "client_reset" // the client reset the tunnel
	resultServerReset = "server_reset" // the pod's side reset the tunnel, or broke
	resultTunnelLost  = "tunnel_lost"  // the client's session ended
	resultHalfClosed  = "half_closed"  // the client went on for too long after the pod had closed
	resultShed        = "shed"         // this gateway reset it: the client held too many unread bytes
	resultReassigned  = "reassigned"   // this gateway reset it: the pod is gone, and its address belongs to another one
	resultStopped     = "stopped"      // this process stopped, and its drain was over
)

// outcome is the value of the label result. Beside ended there is no error.
// background is the context of all that the process forwards.
func (f *forwarding) outcome(background context.Context) string {
	var reset *hbone.ResetError
	switch {
	case f.refused != "":
		return string(f.refused)
	case f.result != "":
		return f.result
	case f.connect == 0:
		return resultCancelled
	case f.err == nil && f.relayed.ConnFirst:
		return resultServerEnded
	case f.err == nil:
		return resultEnded
	case background.Err() != nil:
		return resultStopped
	case errors.Is(f.err, hbone.ErrMemory):
		return resultShed
	case errors.Is(f.err, hbone.ErrHalfClosed):
		return resultHalfClosed
	case errors.As(f.err, &reset) && reset.Remote:
		return resultClientReset
	case f.in.Session.Err() != nil:
		return resultTunnelLost
	case reset != nil: // see admission.Session.Stream
		return resultShed
	}
	return resultServerReset
}

// firstFailure reports whether no other attempt of the connection of client that trace
// belongs to has failed here within the last minute. A client that draws ever new
// traces silences itself alone.
func (g *Gateway) firstFailure(client, trace string) bool {
	_, first := g.failures.Allow(client, trace, time.Now())
	return first
}
