package hbone

import (
	"errors"
	"fmt"

	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/wire"
	"golang.org/x/net/http2"
)

var (
	// ErrRetryable matches a CONNECT that the peer has certainly not served, or
	// whose session died before a response: it may be sent again elsewhere.
	ErrRetryable = errors.New("not processed by the peer, may be tried again")
	// ErrSessionFull is returned by Open when the peer's (or our) limit of
	// concurrent streams is reached. Package pool waits instead.
	ErrSessionFull = errors.New("session has no free stream")
	// ErrSessionClosed is the cause of a session that was closed on purpose.
	ErrSessionClosed = errors.New("session closed")
	// ErrPeerClosed is the cause of a session whose peer has ended the connection
	// without GOAWAY while no stream was open. It matches ErrSessionClosed.
	ErrPeerClosed = fmt.Errorf("%w by its peer without GOAWAY", ErrSessionClosed)
	// ErrPingTimeout is the cause of a session whose peer left a PING
	// unanswered.
	ErrPingTimeout = errors.New("no answer to ping")
	// ErrSettingsTimeout is the cause of a session whose peer did not send its
	// preface in time.
	ErrSettingsTimeout = errors.New("no settings from the peer in time")
	// ErrCertificateExpired is the cause of a session that has outlived a
	// certificate that it rests on by Config.ExpiryGrace.
	ErrCertificateExpired = errors.New("a certificate that the session rests on has expired")
	// ErrUntrusted is the cause of a session whose peer proved itself by a root that is trusted
	// no longer, once its open streams have had their time.
	ErrUntrusted = errors.New("the root that signed the peer's certificate was removed from federation.networks, and timeouts.drain is over")
	// ErrMemory is the cause of a stream or session that was reset because this process
	// had too little memory for what its peer, or its application, does not read.
	ErrMemory = errors.New("reset for want of memory: the process buffers too much that is not read")
	// ErrConnectTimeout is returned by Open when no response came in time.
	ErrConnectTimeout = errors.New("no answer to CONNECT in time")
)

// StatusError is a response other than 200.
type StatusError struct {
	Status int
	Header Header
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("hbone: CONNECT answered with status %d", e.Status)
	if r := e.Reason(); r != "" {
		text += " (" + string(r) + ")"
	}
	if c := e.Cause(); c != "" {
		text += ": " + c
	}
	return text
}

// Cause is what the peer says has happened, empty when it says nothing; see [Cause].
func (e *StatusError) Cause() string { return header.Cause(e.Header.Get(header.NameCause)) }

// Reason is the isthmus-reason of the response, empty when the peer gave none or
// one that is not on the list.
func (e *StatusError) Reason() header.Reason {
	if r := header.Reason(e.Header.Get(header.NameReason)); r.Known() {
		return r
	}
	return ""
}

// Endpoint is the endpoint that the response is about, zero when unknown.
func (e *StatusError) Endpoint() uint64 {
	return header.ParseEndpoint(e.Header.Get(header.NameEndpoint))
}

// ResetError is a stream that ended early: by the peer's RST_STREAM (Remote) or
// by our own.
type ResetError struct {
	Code   http2.ErrCode
	Remote bool
}

func (e *ResetError) Error() string {
	if e.Remote {
		return fmt.Sprintf("hbone: stream reset by peer: %v", e.Code)
	}
	return fmt.Sprintf("hbone: stream reset: %v", e.Code)
}

// GoAwayError is the peer's reason for ending a session.
type GoAwayError struct {
	Code  http2.ErrCode
	Debug string // at most 256 bytes
}

func (e *GoAwayError) Error() string {
	return fmt.Sprintf("hbone: peer sent GOAWAY %v %q", e.Code, e.Debug)
}

// ProtocolError is a peer that broke a rule; we sent GOAWAY with its Code.
type ProtocolError = wire.ProtocolError

// retryable marks err as matching ErrRetryable.
type retryable struct{ err error }

func (e *retryable) Error() string        { return e.err.Error() }
func (e *retryable) Unwrap() error        { return e.err }
func (e *retryable) Is(target error) bool { return target == ErrRetryable }

func protocolFault(id uint32, reason string) error {
	return &wire.StreamError{ID: id, Code: http2.ErrCodeProtocol, Reason: reason}
}
