package boundtoken

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca"
)

// CAAudience is the audience of tokens that are shown to a CA: Istio's word.
const CAAudience = "istio-ca"

// Authorizer is the [istioca.Authorizer] of a cluster. A node proxy may have its own
// identity, and those of the service accounts of live pods on its node, but for those of
// NodeProxies and Others; who is of Others may have its own identity; and nobody else may
// have any. Its Reviewer is for [CAAudience] and for these accounts, and its index has all
// pods.
type Authorizer struct {
	Reviewer    *Reviewer
	Pods        *pods.Index
	TrustDomain spiffeid.TrustDomain
	NodeProxies pods.Account
	Others      []pods.Account // gateways, and the controller
}

// NewAuthorizer returns the Authorizer of a CA of td that asks api. index has all pods, and
// keyFile, unless it is empty, keeps the keys of the API server. The caller runs its Reviewer.
func NewAuthorizer(api API, index *pods.Index, td spiffeid.TrustDomain, nodeProxies pods.Account, others []pods.Account, keyFile string, log zerolog.Logger, m *Metrics) Authorizer {
	accounts := append([]pods.Account{nodeProxies}, others...)
	return Authorizer{
		Reviewer: New(api, Config{Audience: CAAudience, Accounts: accounts, Pods: index, KeyFile: keyFile, Log: log, Metrics: m}),
		Pods:     index, TrustDomain: td, NodeProxies: nodeProxies, Others: others,
	}
}

// Authenticate implements [istioca.Authorizer].
func (a Authorizer) Authenticate(ctx context.Context, from netip.Addr, token string) (istioca.Caller, error) {
	h, err := a.Reviewer.Review(ctx, from, token)
	if why := ReasonOf(err); err != nil && (why == Unavailable || why == Limited) {
		return nil, errors.Join(err, istioca.ErrUnavailable)
	}
	if err != nil {
		return nil, err
	}
	return caller{h, a}, nil
}

// caller is a pod that has shown its token.
type caller struct {
	Holder
	a Authorizer
}

// Key implements [istioca.Caller].
func (c caller) Key() string { return c.UID }

// May implements [istioca.Caller].
func (c caller) May(id spiffeid.ID) error {
	namespace, name, err := identity.Names(id)
	if err != nil {
		return err
	}
	asked := pods.Account{Namespace: namespace, Name: name}
	switch {
	case !id.MemberOf(c.a.TrustDomain):
		return fmt.Errorf("%s asks for %s: this CA issues for trust domain %s", c, id, c.a.TrustDomain)
	case asked == c.Account:
		return nil
	case c.Account != c.a.NodeProxies:
		return fmt.Errorf("%s asks for %s: it may have its own identity alone", c, id)
	case slices.Contains(c.a.Others, asked):
		return fmt.Errorf("%s asks for %s, which nobody may have but who runs as it", c, id)
	case !c.a.Pods.Known():
		return fmt.Errorf("%s asks for %s: which pods are on its node is not known yet: ask again", c, id)
	case !c.a.Pods.Runs(c.Node, asked, time.Now()):
		return fmt.Errorf("%s asks for %s: no live pod of that service account is on its node", c, id)
	}
	return nil
}
