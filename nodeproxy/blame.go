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

// blame is whom an attempt that got no response, or a tunnel that broke, is held
// against. The table of docs/architecture.md has all of it, with what a response says.
type blame uint8

const (
	blameHop       blame = iota // the hop: its health moves
	blameLimit                  // nobody: the identity is at a limit of its own there
	blameLeaving                // nobody: the hop leaves in order
	blameClosed                 // nobody: this side has ended the session, or this process stops
	blameIdentity               // nobody: they do not believe each other
	blameLocal                  // no peer: a local failure, see localfault
	blameElsewhere              // nobody: another replica at the address has answered
	blameOwn                    // nobody: no other peer would get on with us either
)

// blameOf says whom err is held against, which is of a hop that gave no response.
//
// What is refused by RST_STREAM with REFUSED_STREAM or ENHANCE_YOUR_CALM, or by GOAWAY
// with ENHANCE_YOUR_CALM, is refused by a bound of this session, or of its identity, and
// sessions are never shared by two identities: it says nothing about what others get.
func blameOf(err error) blame {
	var goAway *hbone.GoAwayError
	var reset *hbone.ResetError
	var superseded *supersededError
	switch reason := identity.ReasonOf(err); {
	case isElsewhere(err):
		return blameElsewhere
	case errors.Is(err, pool.ErrExhausted), errors.Is(err, pool.ErrHalted): // it serves others, as many as it allows
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

// isLimit reports whether a stream was refused, or ended later, by a bound of its session
// or identity.
func isLimit(r *hbone.ResetError) bool {
	return r.Remote && (r.Code == http2.ErrCodeEnhanceYourCalm || r.Code == http2.ErrCodeRefusedStream)
}

// shed reports whether s has ended with the stream that carries it, which the gateway
// has reset because the identity is at a limit there.
func shed(s *hbone.Session) bool {
	var reset *hbone.ResetError
	return errors.As(s.Err(), &reset) && isLimit(reset)
}

// hopFailure is a next hop that did not answer a CONNECT at all.
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

// breaksBlame reports whether a session that ended with err has ended by its peer's
// fault; nil is one that lives.
func breaksBlame(err error) bool { return err != nil && blameOf(err) == blameHop }

// responseFailure is a response other than 200 from layer at. What a status says that
// has no reason beside it is what RFC 9110 §15 says of its class: 4xx is about the
// request and who sent it, 5xx about who answered.
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
		header.ReasonPinnedGone: // configuration over there, or a pod that is out; elsewhere may do
		f.fault = false
	case header.ReasonWithdrawn: // we did not wait for it
		f.fault = false
	case header.ReasonOverload: // it is well, and has too much to do, or we are at a limit of ours
		f.fault = false
	}
	return f
}
