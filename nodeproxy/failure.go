package nodeproxy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// blame says which layer a failed attempt speaks about. It decides whose
// health moves and where the next attempt may go.
type blame uint8

const (
	blameNobody   blame = iota // policy, configuration, a graceful GOAWAY: no health moves
	blameGateway               // the gateway's address, TLS or session
	blameNetwork               // the network has nothing to offer for this service
	blameEndpoint              // the pod or its node proxy, or the application behind it
)

// failure is one attempt that did not reach an application.
type failure struct {
	blame    blame
	final    bool            // no other endpoint would answer differently
	reason   string          // an isthmus-reason, or one of the tokens below
	endpoint mesh.EndpointID // which endpoint, if the far side said so
	err      error
}

// Reasons of failures that no peer sent us.
const (
	reasonConnect   = "connect"   // TCP, TLS or settings of the next hop
	reasonIdentity  = "identity"  // the peer is somebody else
	reasonTunnel    = "tunnel"    // the tunnel broke before the first byte
	reasonNoRoute   = "no_route"  // no candidate is left
	reasonCancelled = "cancelled" // the application left
)

func (f *failure) Error() string { return f.reason + ": " + f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// hopFailure is what went wrong before the next hop answered anything.
func hopFailure(to blame, what string, err error) *failure {
	f := &failure{blame: to, reason: reasonConnect, err: fmt.Errorf("%s: %w", what, err)}
	var pe *identity.PeerError
	if errors.As(err, &pe) || strings.Contains(err.Error(), "bad certificate") {
		f.blame, f.reason = blameNobody, reasonIdentity
	}
	return f
}

// outerAnswer reads a gateway's refusal.
func outerAnswer(err error) *failure {
	var se *hbone.StatusError
	if !errors.As(err, &se) {
		return sessionFailure(blameGateway, "open tunnel through the gateway", err)
	}
	f := &failure{reason: string(se.Reason()), endpoint: mesh.EndpointID(se.Endpoint()), err: err, blame: blameNetwork}
	switch se.Reason() {
	case hbone.ReasonOverload, hbone.ReasonDraining:
		f.blame = blameGateway
	case hbone.ReasonDenied:
		f.blame, f.final = blameNobody, true
	case hbone.ReasonUnknownService, hbone.ReasonNotExported, hbone.ReasonBadAuthority:
		f.blame = blameNobody // configuration over there; another network may know it
	case "":
		f.reason = fmt.Sprintf("status_%d", se.Status)
	}
	if se.Status == 401 || se.Status == 403 {
		f.blame = blameNobody
	}
	return f
}

// innerAnswer reads the refusal of the node proxy beside the application.
func innerAnswer(endpoint mesh.EndpointID, err error) *failure {
	var se *hbone.StatusError
	if !errors.As(err, &se) {
		f := sessionFailure(blameEndpoint, "open tunnel to the pod", err)
		f.endpoint = endpoint
		return f
	}
	f := &failure{blame: blameEndpoint, reason: string(se.Reason()), endpoint: endpoint, err: err}
	if id := mesh.EndpointID(se.Endpoint()); id != 0 {
		f.endpoint = id
	}
	if f.reason == "" {
		f.reason = fmt.Sprintf("status_%d", se.Status)
	}
	switch se.Status {
	case 401:
		f.blame, f.final = blameNobody, true
	case 400:
		f.blame = blameNobody
	}
	return f
}

// sessionFailure is a session that ended under a CONNECT: a peer that went
// gracefully is not at fault.
func sessionFailure(to blame, what string, err error) *failure {
	f := hopFailure(to, what, err)
	var ga *hbone.GoAwayError
	if errors.As(err, &ga) && ga.Code == 0 {
		f.blame = blameNobody
	}
	return f
}
