package healthstream

import (
	"errors"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
)

// Refusal is why a gateway does not accept a stream, as far as it tells the other end: a
// class and no more, since whoever holds the certificate of node proxies may ask. The log
// of the gateway says the rest.
type Refusal string

// The classes.
const (
	RefusedExpired     Refusal = "expired"     // the token's time is over, or not yet there
	RefusedAudience    Refusal = "audience"    // the token is for somebody else
	RefusedAccount     Refusal = "account"     // the token is of another service account than that of node proxies
	RefusedPod         Refusal = "pod"         // the token's pod does not live, or not on the node that is claimed
	RefusedToken       Refusal = "token"       // there is none, or it is no token of this cluster that is bound to a pod
	RefusedUnavailable Refusal = "unavailable" // nobody can review it now
	RefusedIdentity    Refusal = "identity"    // the certificate is not that of the node that is claimed
	RefusedNetwork     Refusal = "network"     // the gateway is of another network
	RefusedFull        Refusal = "full"        // too many are attached
	RefusedOther       Refusal = "other"       // something that this version has no word for
)

// Refusals are all of them.
var Refusals = []Refusal{RefusedExpired, RefusedAudience, RefusedAccount, RefusedPod, RefusedToken, RefusedUnavailable, RefusedIdentity, RefusedNetwork, RefusedFull, RefusedOther}

// remedies say each class in words, with what to do.
var remedies = map[Refusal]string{
	RefusedExpired:     "the time of its token is over, or has not begun: see whether the kubelet replaces the file federation.token, and compare clocks",
	RefusedAudience:    "its token is for another audience: let the volume of federation.token ask for that of the gateways (nodeAudience: isthmus-gateway)",
	RefusedAccount:     "its token is of another service account than nodeServiceAccount of the gateways: run it as that one",
	RefusedPod:         "the pod of its token does not live, or not on the node that `node` names: start the pod anew, or correct `node`",
	RefusedToken:       "it shows no token of this cluster that is bound to a pod: mount a projected one, and name its file as federation.token",
	RefusedUnavailable: "its token cannot be reviewed now: see whether the API server answers the gateway, and lets it create tokenreviews",
	RefusedIdentity:    "its certificate is not that of the node that `node` names: correct `node`, or have the certificate name this node",
	RefusedNetwork:     "the gateway is of another network than `network` says: correct `network`, or discovery.gateways",
	RefusedFull:        "as many node proxies are attached there as may be: run more gateways",
}

// known is r, if it is a class, and otherwise RefusedOther: what is read is shown and logged.
func (r Refusal) known() Refusal {
	if _, ok := remedies[r]; ok {
		return r
	}
	return RefusedOther
}

// RefusedError is an error of a [Prover] that says which class it is of.
type RefusedError struct {
	Refusal Refusal
	Err     error
}

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

// refusalOf is what the other end is told of err.
func refusalOf(err error) Refusal {
	var class *RefusedError
	var foreign *federation.ForeignError
	var wrong *peer.IdentityError
	switch {
	case errors.As(err, &class):
		return class.Refusal.known()
	case errors.As(err, &foreign):
		return RefusedNetwork
	case errors.As(err, &wrong):
		return RefusedIdentity
	case errors.Is(err, peer.ErrFull):
		return RefusedFull
	}
	return RefusedOther
}

// explain tells an end that understands it why it is refused. It ends the stream, so that
// nothing comes of it if it cannot be written.
func explain(c *frames, hello *pb.Attach, err error) {
	if hello.GetExplain() {
		_ = c.write(&pb.StreamMessage{Message: &pb.StreamMessage_Refused{Refused: &pb.Refused{Reason: string(refusalOf(err))}}})
	}
}

// refusedError is a gateway that knew who we are and did not accept the stream.
type refusedError struct {
	why Refusal // empty: it closed the stream without a word
	err error   // how it did; nil if it said why
}

func (e *refusedError) Error() string {
	if e.why == "" {
		return "the gateway closed the stream before its welcome: its log says why (client refused: limits.identity.sessions; or health stream refused): " + e.err.Error()
	}
	remedy := remedies[e.why]
	if remedy == "" {
		remedy = "see its log (health stream refused)"
	}
	return "the gateway refuses this node proxy (" + string(e.why) + "): " + remedy
}

func (e *refusedError) Unwrap() error { return e.err }

// refusalLine is what was last logged of a gateway that refuses: another reason is another
// line.
type refusalLine struct{ last string }

// first reports whether err is a refusal of which nothing was logged yet.
func (l *refusalLine) first(err error) bool {
	var refused *refusedError
	if !errors.As(err, &refused) || l.last == "refused "+string(refused.why) {
		return false
	}
	l.last = "refused " + string(refused.why)
	return true
}
