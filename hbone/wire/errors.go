package wire

import (
	"fmt"

	"golang.org/x/net/http2"
)

// ProtocolError is a peer that broke a rule; we sent GOAWAY with Code.
type ProtocolError struct {
	Code   http2.ErrCode
	Reason string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("hbone: peer broke the protocol: %s (%v)", e.Reason, e.Code)
}

// ConnError returns a *ProtocolError.
func ConnError(code http2.ErrCode, format string, args ...any) error {
	return &ProtocolError{Code: code, Reason: fmt.Sprintf(format, args...)}
}

// StreamError is a rule broken on one stream; the session goes on.
type StreamError struct {
	ID     uint32
	Code   http2.ErrCode
	Reason string
	Opens  bool // it was in a header block, which may open the stream
}

func (e *StreamError) Error() string {
	return fmt.Sprintf("hbone: stream %d: %s (%v)", e.ID, e.Reason, e.Code)
}
