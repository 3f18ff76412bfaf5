package quic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	quicgo "github.com/quic-go/quic-go"
	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// Error codes of RFC 9114 §8.1 and RFC 9204 §6.
const (
	codeNoError              = 0x100
	codeGeneralProtocol      = 0x101
	codeInternal             = 0x102
	codeStreamCreation       = 0x103
	codeClosedCriticalStream = 0x104
	codeFrameUnexpected      = 0x105
	codeFrame                = 0x106
	codeExcessiveLoad        = 0x107
	codeID                   = 0x108
	codeSettings             = 0x109
	codeMissingSettings      = 0x10a
	codeRequestRejected      = 0x10b
	codeRequestCancelled     = 0x10c
	codeRequestIncomplete    = 0x10d
	codeMessage              = 0x10e
	codeConnect              = 0x10f
	codeVersionFallback      = 0x110
	codeDecompression        = 0x200
)

// pairs maps codes that both protocols have, and the nearest ones of the others.
var pairs = []struct {
	h2 http2.ErrCode
	h3 uint64
}{
	{http2.ErrCodeNo, codeNoError},
	{http2.ErrCodeCancel, codeRequestCancelled},
	{http2.ErrCodeConnect, codeConnect},
	{http2.ErrCodeRefusedStream, codeRequestRejected},
	{http2.ErrCodeInternal, codeInternal},
	{http2.ErrCodeEnhanceYourCalm, codeExcessiveLoad},
	{http2.ErrCodeHTTP11Required, codeVersionFallback},
	{http2.ErrCodeProtocol, codeGeneralProtocol},
	{http2.ErrCodeProtocol, codeMessage},
	{http2.ErrCodeProtocol, codeFrameUnexpected},
	{http2.ErrCodeProtocol, codeFrame},
	{http2.ErrCodeProtocol, codeStreamCreation},
	{http2.ErrCodeProtocol, codeClosedCriticalStream},
	{http2.ErrCodeProtocol, codeID},
	{http2.ErrCodeProtocol, codeSettings},
	{http2.ErrCodeProtocol, codeMissingSettings},
	{http2.ErrCodeCompression, codeDecompression},
}

// toH3 returns the code of RFC 9114 for one of RFC 9113.
func toH3(code http2.ErrCode) uint64 {
	for _, p := range pairs {
		if p.h2 == code {
			return p.h3
		}
	}
	return codeInternal
}

// toH2 is the reverse of toH3.
func toH2[C ~uint64](code C) http2.ErrCode {
	for _, p := range pairs {
		if p.h3 == uint64(code) {
			return p.h2
		}
	}
	return http2.ErrCodeInternal
}

// resetCode returns the code to send when a stream of a session has failed with err.
func resetCode(err error) quicgo.StreamErrorCode {
	var reset *hbone.ResetError
	var v *violation
	switch {
	case errors.As(err, &v):
		return quicgo.StreamErrorCode(v.code)
	case errors.As(err, &reset):
		return quicgo.StreamErrorCode(toH3(reset.Code))
	case errors.Is(err, hbone.ErrRetryable):
		return codeRequestRejected
	case errors.Is(err, hbone.ErrMemory):
		return codeExcessiveLoad
	}
	return codeInternal
}

// withAlert returns err with the alert of TLS in it that it stands for, in the form of crypto/tls.
func withAlert(err error) error {
	var e *quicgo.TransportError
	if errors.As(err, &e) && e.Remote && e.ErrorCode.IsCryptoError() {
		return fmt.Errorf("%w: %w", err, &net.OpError{Op: "remote error", Err: tls.AlertError(e.ErrorCode - 0x100)})
	}
	return err
}

// cancelled returns the code with which the peer cancelled a half of a stream. It is not ok if
// err has another cause.
func cancelled(err error) (code quicgo.StreamErrorCode, ok bool) {
	var e *quicgo.StreamError
	if errors.As(err, &e) && e.Remote {
		return e.ErrorCode, true
	}
	return 0, false
}
