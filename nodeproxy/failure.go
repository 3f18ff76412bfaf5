package nodeproxy

import (
	"context"
	"errors"
	"time"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/retrybudget"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// layer is where an attempt ended. It decides where the next one may go.
type layer uint8

const (
	atGateway  layer = iota + 1 // its address, TLS or session
	atNetwork                   // the gateway answered: nothing to offer for this service
	atEndpoint                  // the pod, its node proxy, or the application behind it
)

// failure is one attempt that did not reach an application.
type failure struct {
	at       layer           // zero: before anything was tried
	fault    bool            // the health of that layer moves; not for policy, identity, or a peer that left in order
	final    bool            // no other endpoint would answer differently
	reason   string          // an isthmus-reason, or one of the tokens below
	endpoint mesh.EndpointID // which endpoint, if the far side said so
	hop      bool            // the gateway says that it has no way to endpoint; of a pod of the own network: its node proxy did not answer
	quiet    bool            // the session that it was asked on was silent, and the gateway was not
	refused  bool            // without a response, by a limit of ours at that layer
	err      error
}

// Reasons of failures that no peer sent us.
const (
	reasonConnect   = "connect"                  // TCP, TLS or HTTP/2 settings of the next hop failed
	reasonIdentity  = identity.ReasonIdentity    // the peer has another identity than expected, or rejects ours
	reasonOwn       = identity.ReasonOwnIdentity // this process has no valid certificate; not a fault of the peer
	reasonLocal     = "local"                    // the dial failed on this host, such as for lack of a descriptor, port, route or permission
	reasonElsewhere = "elsewhere"                // another replica at the gateway's address answered
	reasonTunnel    = "tunnel"                   // the tunnel broke before the first byte
	reasonNoRoute   = "no_route"                 // no candidate is left to try
	reasonStatus    = "status"                   // a status without a reason of this list; it is in the error
	reasonCancelled = "cancelled"                // the application left, or this process is stopping
)

func (f *failure) Error() string { return f.reason + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// responded reports whether the far side sent a response, be it no; without a failure
// it did.
func (f *failure) responded() bool {
	var status *hbone.StatusError
	return f == nil || errors.As(f.err, &status)
}

// answered reports whether the far side has spoken: responded, or refused in HTTP/2.
func (f *failure) answered() bool { return f == nil || f.refused || f.responded() }

// silent reports whether nobody was there to answer: PINGs went unanswered, or a handshake. An
// application that does not answer has a node proxy that does.
func (f *failure) silent() bool {
	var handshake *handshakeError
	return !f.answered() && (f.quiet || errors.Is(f.err, hbone.ErrPingTimeout) || errors.As(f.err, &handshake) && isTimeout(f.err))
}

// unreached reports whether there was no session with the next hop: its address did not
// answer, or its handshake, or the time for both was over.
func (f *failure) unreached() bool {
	var dial *dialError
	var handshake *handshakeError
	return errors.As(f.err, &dial) || errors.As(f.err, &handshake) && handshake.hop != hopInner ||
		errors.Is(f.err, context.DeadlineExceeded) && !errors.Is(f.err, hbone.ErrConnectTimeout)
}

// faultOf says whether f is the fault of layer l; no failure is nobody's.
func (f *failure) faultOf(l ...layer) bool {
	if f == nil || !f.fault {
		return false
	}
	for _, x := range l {
		if f.at == x {
			return true
		}
	}
	return false
}

// overload reports whether the far side refused because it has too much to do, or by a
// limit of ours.
func (f *failure) overload() bool {
	return f != nil && f.reason == string(header.ReasonOverload) && f.answered()
}

// repeatCost is what repeating after f takes off the retry budget.
func (f *failure) repeatCost() float64 {
	if f.reason == string(header.ReasonTimeout) || isTimeout(f.err) {
		return retrybudget.AfterTimeout
	}
	return retrybudget.AfterRefusal
}

// excuse takes the fault off an attempt that ended because nobody answered in time,
// when this process was late itself meanwhile.
func (p *Proxy) excuse(f *failure, started time.Time) {
	if f != nil && isTimeout(f.err) && p.late(started) {
		f.fault = false
	}
}

// Hops whose handshakes are told apart.
const (
	hopSingle = "single" // to a pod of the own network
	hopOuter  = "outer"  // to a gateway
	hopInner  = "inner"  // through a gateway to a pod
)

// dialError is of an address that did not answer.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// handshakeError says of which hop a handshake failed. In TLS 1.3 a refusal of our
// certificate arrives only after our side of the handshake is done.
type handshakeError struct {
	hop string
	err error
}

func (e *handshakeError) Error() string { return e.hop + " handshake: " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// inHandshake wraps err unless it says already of which handshake it comes.
func inHandshake(hop string, err error) error {
	var before *handshakeError
	if errors.As(err, &before) {
		return err
	}
	return &handshakeError{hop, err}
}

// outerResponse reads how an outer CONNECT failed at a gateway.
func outerResponse(err error) *failure {
	var se *hbone.StatusError
	if !errors.As(err, &se) {
		return hopFailure(atGateway, hopOuter, err)
	}
	f := responseFailure(atNetwork, se, err)
	f.endpoint = mesh.EndpointID(se.Endpoint())
	switch {
	case f.overload() || f.reason == string(header.ReasonDraining): // it speaks of itself
		f.at = atGateway
	case !f.fault: // of all that it has: another pod by way of it would be told the same
		f.endpoint = 0
	}
	return f
}

// pinned turns the response of a gateway that was asked for pod alone into one about
// that pod. One that is gone is to be avoided, though nobody has said why yet; one
// that is named beside overload has too much to do, and others behind the same gateway
// have not.
func (f *failure) pinned(pod mesh.EndpointID) {
	switch {
	case f.at == atNetwork:
		f.at, f.endpoint, f.hop = atEndpoint, pod, true
		f.fault = f.fault || f.reason == string(header.ReasonPinnedGone)
	case f.reason == string(header.ReasonOverload) && f.endpoint == pod:
		f.at = atEndpoint
	}
}

// innerResponse reads how a CONNECT to a pod failed, on hop single or inner;
// endpoint is who was asked, if that is known: then the answer is about that one, whomever
// it names, or a pod could have others avoided.
func innerResponse(endpoint mesh.EndpointID, hop string, err error) *failure {
	var se *hbone.StatusError
	if !errors.As(err, &se) {
		f := hopFailure(atEndpoint, hop, err)
		f.endpoint = endpoint
		var reset *hbone.ResetError
		f.hop = hop == hopSingle && f.fault && !(errors.As(err, &reset) && reset.Remote) // who resets one stream answers
		var indeterminate *indeterminateError
		if errors.As(err, &indeterminate) {
			f.final, f.reason = true, reasonTunnel
		}
		return f
	}
	f := responseFailure(atEndpoint, se, err)
	f.endpoint = endpoint
	if endpoint == 0 {
		f.endpoint = mesh.EndpointID(se.Endpoint())
	}
	if f.reason == string(header.ReasonDraining) { // its node proxy leaves, and the pod may be well
		f.fault = false
	}
	return f
}

// throughResponse is innerResponse for an error that may come from the gateway's
// side of the way already.
func throughResponse(endpoint mesh.EndpointID, err error) *failure {
	var before *failure
	if errors.As(err, &before) {
		f := *before
		f.err = err
		return &f
	}
	f := innerResponse(endpoint, hopInner, err)
	var lost *lostCarrierError
	if errors.As(err, &lost) {
		f.at = atGateway
	}
	return f
}

// supersededError is a request that got no answer on a session which fell silent,
// while a fresh connect to the same peer was answered: the way there has lost a
// connection, and the peer is well.
type supersededError struct{ err error }

func (e *supersededError) Error() string { return e.err.Error() }
func (e *supersededError) Unwrap() error { return e.err }

// superseded reports whether the pool has given s up for a fresh session.
func superseded(s *hbone.Session) bool {
	a := s.Availability(time.Now())
	return a.Silent && a.Retired && s.Base().Err() == nil
}

// lostCarrierError is a stream that ended because the connection to the gateway
// did, or that waited while nothing at all came through that connection.
type lostCarrierError struct{ err error }

func (e *lostCarrierError) Error() string { return e.err.Error() }
func (e *lostCarrierError) Unwrap() error { return e.err }

// indeterminateError is an attempt whose early bytes may have reached the application:
// they must not be sent again.
type indeterminateError struct{ err error }

func (e *indeterminateError) Error() string {
	return e.err.Error() + " (it may have got the first bytes: not repeated)"
}
func (e *indeterminateError) Unwrap() error { return e.err }

func reasonToken(se *hbone.StatusError) string {
	if r := se.Reason(); r != "" {
		return string(r)
	}
	return reasonStatus
}
