package hbone

import (
	"context"
	"errors"

	"golang.org/x/net/http2"
)

// Outcome is how a session ended, as a label: the set is closed, whatever a peer
// sends.
type Outcome string

const (
	OutcomeOrderly   Outcome = "orderly"             // closed by us, or by a peer with nothing open
	OutcomeGoAway    Outcome = "goaway"              // by the peer's GOAWAY, with an error or with streams open
	OutcomeFault     Outcome = "protocol_error"      // the peer broke a rule of HTTP/2
	OutcomeAbuse     Outcome = "abuse"               // the peer sent more than a session puts up with
	OutcomeSettings  Outcome = "settings_timeout"    // no SETTINGS in time
	OutcomePing      Outcome = "ping_timeout"        // no answer to PING in time
	OutcomeExpired   Outcome = "certificate_expired" // it outlived a certificate that it rests on
	OutcomeUntrusted Outcome = "untrusted"           // the root of the peer's certificate is trusted no longer
	OutcomeLost      Outcome = "lost"                // the transport failed, or ended with streams open
)

// OutcomeOf reads what [Session.Serve] or [Session.Err] returned for a session that
// has ended.
func OutcomeOf(err error) Outcome {
	var fault *ProtocolError
	var goAway *GoAwayError
	switch {
	case err == nil, errors.Is(err, ErrSessionClosed), errors.Is(err, context.Canceled):
		return OutcomeOrderly
	case errors.As(err, &fault) && fault.Code == http2.ErrCodeEnhanceYourCalm:
		return OutcomeAbuse
	case errors.As(err, &fault):
		return OutcomeFault
	case errors.As(err, &goAway):
		return OutcomeGoAway
	case errors.Is(err, ErrSettingsTimeout):
		return OutcomeSettings
	case errors.Is(err, ErrPingTimeout):
		return OutcomePing
	case errors.Is(err, ErrCertificateExpired):
		return OutcomeExpired
	case errors.Is(err, ErrUntrusted):
		return OutcomeUntrusted
	}
	return OutcomeLost
}
