package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Results of connections besides the reasons of refusals.
const (
	resultOK          = "ok"           // ended in order
	resultCancelled   = "cancelled"    // the client left before it was answered
	resultNoHello     = "no_hello"     // the client sent no TLS hello in time
	resultClientReset = "client_reset" // the client reset the stream
	resultServerReset = "server_reset" // the pod's side broke
	resultTunnelLost  = "tunnel_lost"  // the client's session ended
	resultHalfClosed  = "half_closed"  // the client went on for too long after the pod had closed
	resultShed        = "shed"         // this gateway reset it: the client held too many unread bytes
	resultStopped     = "stopped"      // this process stopped, and its drain was over
)

// outcome is the value of the label result: ok exactly if there is no error.
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
	case f.err == nil:
		return resultOK
	case background.Err() != nil:
		return resultStopped
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

// firstFailure reports whether no other attempt of the connection that trace belongs
// to has failed here within the last minute.
func (g *Gateway) firstFailure(trace string) bool {
	_, first := g.failures.Allow(trace, time.Now())
	return first
}
