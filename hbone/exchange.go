package hbone

import (
	"context"
	"time"
)

// exchange is the CONNECT of a stream and its response. Guarded by the session's mu.
type exchange struct {
	response *Response

	// On a client.
	authority  string
	sentAt     time.Time
	replayable bool          // see Request.Replayable
	dataSent   bool          // payload was sent before the response
	pending    chan struct{} // closed with the response or the end of the stream, then nil
	decided    chan struct{} // the same channel, never changed

	// On a server.
	cancel   context.CancelCauseFunc // of the handler's context
	accepted bool                    // 200 is queued
	refused  bool                    // another status is queued
}
