package gateway

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery/kube/boundtoken"
	kubepods "github.com/isthmus-mesh/isthmus/discovery/kube/pods"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// nodeProver believes certificates that name their node and, beside a Kubernetes cluster,
// the plain identity of node proxies with the token of one: it must be of the node that
// is claimed.
type nodeProver struct {
	certificates healthstream.NodeIdentities
	tokens       reviewer // nil without discovery.kube
	log          zerolog.Logger
	lines        *logging.PeerLimits
}

// reviewer is a [boundtoken.Reviewer].
type reviewer interface {
	Review(ctx context.Context, from netip.Addr, token string) (boundtoken.Holder, error)
	Refuse(why boundtoken.Reason)
	Holds(h boundtoken.Holder, now time.Time) error
}

// prover says how node proxies of account prove their nodes here.
func (g *Gateway) prover(account spiffeid.ID) nodeProver {
	p := nodeProver{healthstream.NodeIdentities{Account: account, Network: g.cfg.Network}, nil, g.log, &logging.PeerLimits{Every: time.Minute, Log: &g.log}}
	if g.tokens != nil {
		p.tokens = g.tokens
	}
	return p
}

// reviewTokens has the gateway take tokens of node proxies of the cluster that it follows.
func (g *Gateway) reviewTokens(m *boundtoken.Metrics) error {
	account, err := g.cfg.nodeAccount()
	if err != nil {
		return err
	}
	namespace, name, err := identity.Names(account)
	if err != nil {
		return err
	}
	api, err := boundtoken.OpenAPI(g.cfg.Discovery.Kube)
	if err != nil {
		return err
	}
	nodeproxy := kubepods.Account{Namespace: namespace, Name: name}
	index := kubepods.NewIndex(func(a kubepods.Account) bool { return a == nodeproxy })
	g.kube.TellPods(index)
	g.tokens = boundtoken.New(api, boundtoken.Config{
		Audience: g.cfg.Discovery.Kube.NodeAudience, Accounts: []kubepods.Account{nodeproxy}, Pods: index, KeyFile: g.cfg.Discovery.Kube.KeyCache,
		Log: g.log, Metrics: m,
	})
	return nil
}

// Admit implements [healthstream.Prover].
func (p nodeProver) Admit(peer spiffeid.ID) error {
	if p.tokens != nil && peer == p.certificates.Account {
		return nil // which node it is on, its token says
	}
	return p.certificates.Admit(peer)
}

// Prove implements [healthstream.Prover].
func (p nodeProver) Prove(ctx context.Context, peer spiffeid.ID, claim healthstream.Claim) (healthstream.Proof, error) {
	if p.tokens == nil || peer != p.certificates.Account {
		return p.certificates.Prove(ctx, peer, claim)
	}
	if len(claim.Token) == 0 {
		return healthstream.Proof{}, &healthstream.RefusedError{Refusal: healthstream.RefusedToken, Err: fmt.Errorf("node %q brings no token, and identity %s does not name its node: set federation.token of the node proxy", claim.Node, peer)}
	}
	h, err := p.tokens.Review(ctx, addressOf(claim.From), strings.TrimSpace(string(claim.Token)))
	reason := boundtoken.ReasonOf(err)
	if err == nil && h.Node != claim.Node {
		reason = boundtoken.WrongNode
		p.tokens.Refuse(reason)
		err = fmt.Errorf("it is that of %s, who may not speak as another node", h)
	}
	if err != nil {
		p.refused(peer, claim, reason, err)
		return healthstream.Proof{}, &healthstream.RefusedError{Refusal: classOf(reason), Err: fmt.Errorf("node %q: token refused (%s): %w", claim.Node, reason, err)}
	}
	return healthstream.Proof{How: string(h.How), Expires: h.Expires, Holds: func(now time.Time) error { return p.tokens.Holds(h, now) }}, nil
}

// classOf is what the holder of a token that does not count is told: no more than helps
// whoever has a token of this cluster and has mounted it wrongly.
func classOf(why boundtoken.Reason) healthstream.Refusal {
	switch why {
	case boundtoken.Expired:
		return healthstream.RefusedExpired
	case boundtoken.WrongAudience:
		return healthstream.RefusedAudience
	case boundtoken.WrongAccount:
		return healthstream.RefusedAccount
	case boundtoken.WrongPod, boundtoken.WrongNode:
		return healthstream.RefusedPod
	case boundtoken.Limited, boundtoken.Unavailable:
		return healthstream.RefusedUnavailable
	}
	return healthstream.RefusedToken
}

// refused logs a refused token: at most one line per minute for each host, node and
// reason.
func (p nodeProver) refused(peer spiffeid.ID, claim healthstream.Claim, why boundtoken.Reason, err error) {
	e := p.lines.Sample(p.log.Warn(), addressOf(claim.From).String(), string(why)+" "+claim.Node)
	if e == nil {
		return
	}
	e.Str("node", claim.Node).Stringer("peer", peer).Str("reason", string(why))
	if claim.From != nil {
		e.Stringer("address", claim.From)
	}
	e.Err(err).Msg("token of a node proxy refused")
}
