package nodeproxy

import (
	"errors"

	"golang.org/x/net/http2"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/hbone/pool"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
)

// blame is the cause of an attempt without a response, or of a broken tunnel. It decides whether
// the health of the hop changes. The table in docs/architecture.md has all causes, and responses.
type blame uint8

const (
	blameHop       blame = iota // the hop failed. The only cause that changes its health
	blameLimit                  // the source identity is at its limit at the hop
	blameLeaving                // the hop shuts down in order
	blameClosed                 // this side closed the session, or this process stops
	blameIdentity               // one side rejected the certificate of the other
	blameLocal                  // a local failure, see localfault
	blameElsewhere              // another replica at the address answered
	blameOwn                    // this process has no usable certificate: every peer would fail
)

// blameOf returns the cause of err, an error of a hop without a response.
//
// RST_STREAM with REFUSED_STREAM or ENHANCE_YOUR_CALM, and GOAWAY with ENHANCE_YOUR_CALM, refuse a
// stream at a limit of this session or its identity. Identities never share a session, so other
// identities are not affected.
func blameOf(err error) blame {
	var goAway *hbone.GoAwayError
	var reset *hbone.ResetError
	var superseded *supersededError
	switch reason := identity.ReasonOf(err); {
	case isElsewhere(err):
		return blameElsewhere
	case errors.Is(err, pool.ErrExhausted), errors.Is(err, pool.ErrHalted): // the hop serves other streams, up to its limit
		return blameLimit
	case errors.As(err, &superseded), errors.Is(err, pool.ErrClosed), errors.Is(err, hbone.ErrSessionClosed) && !errors.Is(err, hbone.ErrPeerClosed), errors.Is(err, hbone.ErrCertificateExpired):
		return blameClosed
	case reason == reasonOwn:
		return blameOwn
	case localfault.Is(err), errors.Is(err, hbone.ErrMemory): // this process has reset the session for its memory
		return blameLocal
	case reason == reasonIdentity:
		return blameIdentity
	case errors.As(err, &goAway) && goAway.Code == http2.ErrCodeNo:
		return blameLeaving
	case errors.As(err, &goAway) && goAway.Code == http2.ErrCodeEnhanceYourCalm:
		return blameLimit
	case errors.As(err, &reset) && isLimit(reset):
		return blameLimit
	}
	return blameHop
}

// isLimit reports whether a stream was refused, or reset later, at a limit of its session or identity.
func isLimit(r *hbone.ResetError) bool {
	return r.Remote && (r.Code == http2.ErrCodeEnhanceYourCalm || r.Code == http2.ErrCodeRefusedStream)
}

// shed reports whether s closed because the gateway reset the stream that carries it, at a limit of the identity.
func shed(s *hbone.Session) bool {
	var reset *hbone.ResetError
	return errors.As(s.Err(), &reset) && isLimit(reset)
}

// hopFailure returns the failure of a CONNECT without a response from the next hop.
func hopFailure(at layer, hop string, err error) *failure {
	f := &failure{at: at, reason: reasonConnect, err: err}
	switch blameOf(err) {
	case blameHop:
		f.fault = true
	case blameLimit:
		f.reason = string(header.ReasonOverload)
		f.refused = !errors.Is(err, pool.ErrExhausted) && !errors.Is(err, pool.ErrHalted)
	case blameElsewhere:
		var e *elsewhereError
		errors.As(err, &e)
		f.reason, f.fault = reasonElsewhere, e.lost
	case blameOwn:
		f.at, f.final, f.reason = 0, true, reasonOwn
	case blameLocal:
		f.reason = reasonLocal
	case blameIdentity:
		f.reason, f.err = reasonIdentity, inHandshake(hop, err)
	}
	return f
}

// breaksBlame reports whether a session that closed with err failed at its peer. It is false for nil: the session is open.
func breaksBlame(err error) bool { return err != nil && blameOf(err) == blameHop }

// responseFailure returns the failure of a CONNECT with a response other than 200 from layer at. A status without a reason
// has the meaning of its class in RFC 9110 §15: the request is at fault for 4xx, the responder for 5xx.
func responseFailure(at layer, se *hbone.StatusError, err error) *failure {
	f := &failure{at: at, fault: se.Status < 400 || se.Status >= 500, reason: reasonToken(se), err: err}
	switch {
	case se.Status == 401: // policy, the same on every pod and gateway
		f.final = true
	case se.Status == 429 && se.Reason() == "":
		f.reason = string(header.ReasonOverload)
	}
	switch header.Reason(f.reason) {
	case header.ReasonDenied:
		f.fault, f.final = false, true
	case header.ReasonUnknownService, header.ReasonNotExported, header.ReasonNotLocal, header.ReasonBadAuthority, header.ReasonBadRequest,
		header.ReasonPinnedGone: // configuration of the peer, or a pinned pod that is gone. Another endpoint may succeed
		f.fault = false
	case header.ReasonWithdrawn: // this side withdrew the request
		f.fault = false
	case header.ReasonOverload: // the peer is healthy but overloaded, or this identity is at its limit
		f.fault = false
	}
	return f
}
