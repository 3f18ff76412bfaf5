package healthstream

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/identity"
)

// Claim is what the other end of a stream says that it is.
type Claim struct {
	Network string
	Node    string
	// Token is what its platform has given it to prove that, such as a bound
	// service-account token; empty where its identity does.
	Token []byte
	// From is the address that it comes from, for the log.
	From net.Addr
}

// Prover decides which node the other end of a stream speaks for. A node's name
// may be believed only because of what the peer has proved, never because it says
// so: of pods of its node it is the only witness.
//
// [NodeIdentities] is that of the development CA and of SPIRE. A platform whose
// certificates do not name nodes brings another one that reviews the token.
type Prover interface {
	// Admit says whether the holder of an identity may claim anything at all. It
	// must not wait.
	Admit(peer spiffeid.ID) error
	// Prove returns what proves peer to be the node proxy of the claimed node, or why
	// it is not. It may ask others until ctx ends.
	Prove(ctx context.Context, peer spiffeid.ID, claim Claim) (Proof, error)
}

// Proof is by what a node was proven, and how long that is worth something. A stream ends
// with it: its node proxy attaches again, with a new one. The zero Proof lasts as long as
// the certificates of the connection.
type Proof struct {
	How     string    // for an operator, such as "certificate"
	Expires time.Time // zero: it does not by itself
	// Holds returns nil as long as the proof is worth something before it expires; nil
	// is always. It is asked every second, and must not wait.
	Holds func(now time.Time) error
}

// check returns why p is worth nothing at now.
func (p Proof) check(now time.Time) error {
	if !p.Expires.IsZero() && !now.Before(p.Expires) {
		return fmt.Errorf("the proof of its node expired at %s", p.Expires.UTC().Format(time.RFC3339))
	}
	if p.Holds != nil {
		return p.Holds(now)
	}
	return nil
}

// NodeIdentities believes identities that name the node ([identity.NodeID]) and
// whose service account is Account.
type NodeIdentities struct {
	Account spiffeid.ID
	Network string
}

// Admit implements [Prover].
func (p NodeIdentities) Admit(peer spiffeid.ID) error {
	account, network, _, ok := identity.NodeOf(peer)
	switch {
	case peer == p.Account:
		return fmt.Errorf("identity %s does not say which node it is: it must have /node/<network>/<node> behind the service account", peer)
	case !ok || account != p.Account:
		return fmt.Errorf("identity %s may not report health: want %s/node/%s/<node>", peer, p.Account, p.Network)
	case network != p.Network:
		return fmt.Errorf("identity %s is of a node of network %q: this is a gateway of network %q", peer, network, p.Network)
	}
	return nil
}

// Prove implements [Prover].
func (p NodeIdentities) Prove(_ context.Context, peer spiffeid.ID, claim Claim) (Proof, error) {
	if err := p.Admit(peer); err != nil {
		return Proof{}, err
	}
	if _, _, node, _ := identity.NodeOf(peer); node != claim.Node {
		return Proof{}, fmt.Errorf("identity %s is of node %q and may not speak as node %q", peer, node, claim.Node)
	}
	return Proof{How: "certificate"}, nil
}
