package nodeproxy

import (
	"context"
	"errors"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Results of connections that were open and did not end in order.
const (
	resultOK          = "ok"
	resultClientReset = "client_reset" // the application that connected
	resultServerReset = "server_reset" // the one that it connected to
	resultTunnelLost  = "tunnel_lost"  // the way between them broke
	resultStopped     = "stopped"      // this process stopped, and its drain was over
	resultShed        = "shed"         // this process reset it for want of memory
)

// ending is the result of a connection that was relayed until err, nil for an orderly
// end. data is the context of all that the process carries.
func ending(data context.Context, direction string, stream *hbone.Stream, err error) string {
	near, far := resultClientReset, resultServerReset
	if direction == "inbound" {
		near, far = far, near
	}
	var reset *hbone.ResetError
	lost := stream.Session().Err()
	switch {
	case err == nil:
		return resultOK
	case data.Err() != nil:
		return resultStopped
	case errors.Is(err, hbone.ErrMemory):
		return resultShed
	case lost != nil && errors.Is(err, lost): // with a reset in it, if that was of the outer stream
		return resultTunnelLost
	case errors.As(err, &reset) && reset.Remote:
		return far
	case reset != nil, lost != nil:
		return resultTunnelLost
	}
	return near
}
