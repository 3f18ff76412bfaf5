package hbone

import (
	"context"
	"time"
)

// exchange is the CONNECT of a stream and its response. Guarded by the session's mu.
type exchange struct {
	response  *Response
	withdrawn bool // the client has sent a WITHDRAW: see interim.go

	// On a client.
	authority  string
	sentAt     time.Time
	replayable bool          // see Request.Replayable
	dataSent   bool          // payload was sent before the response
	pending    chan struct{} // closed with the response or the end of the stream, then nil
	decided    chan struct{} // the same channel, never changed
	interim    *Response     // the first informational response
	heard      chan struct{} // closed with it, if somebody waits; else nil

	// On a server.
	cancel   context.CancelCauseFunc // of the handler's context
	accepted bool                    // 200 is queued
	refused  bool                    // another status is queued
	informed bool                    // an informational response is queued
}
