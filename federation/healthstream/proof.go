package healthstream

import (
	"context"
	"fmt"

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
	// Prove returns nil if peer is the node proxy of the claimed node. It may ask
	// others until ctx ends.
	Prove(ctx context.Context, peer spiffeid.ID, claim Claim) error
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
func (p NodeIdentities) Prove(_ context.Context, peer spiffeid.ID, claim Claim) error {
	if err := p.Admit(peer); err != nil {
		return err
	}
	if _, _, node, _ := identity.NodeOf(peer); node != claim.Node {
		return fmt.Errorf("identity %s is of node %q and may not speak as node %q", peer, node, claim.Node)
	}
	return nil
}
