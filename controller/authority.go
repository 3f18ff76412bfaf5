package controller

import (
	"context"
	"fmt"
	"net"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/discovery/kube/boundtoken"
	"github.com/isthmus-mesh/isthmus/discovery/kube/pods"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca"
)

// authority is the CA service of this process. A nil one is none.
type authority struct {
	dir      *identity.CADir
	server   *istioca.Server
	reviewer *boundtoken.Reviewer
	index    *pods.Index
	listener net.Listener
	requests *istioca.Metrics
}

// openAuthority reads the CA and opens its service; nil without ca.address. It learns of
// pods from the source.
func (c *Controller) openAuthority() (*authority, error) {
	if !c.cfg.CA.Address.IsValid() {
		return nil, nil
	}
	dir, err := identity.OpenCADir(c.cfg.caDir())
	if err != nil {
		return nil, fmt.Errorf("ca.dir: %w", err)
	}
	td, err := spiffeid.TrustDomainFromString(c.cfg.TrustDomain)
	if err != nil {
		return nil, fmt.Errorf("trustDomain: %w", err)
	}
	if dir.Current().TrustDomain() != td {
		return nil, fmt.Errorf("ca.dir: %s: the ca signs for trust domain %q, and trustDomain is %q: correct one of them", c.cfg.caDir(), dir.Current().TrustDomain(), td)
	}
	var accounts []pods.Account
	for _, account := range []string{c.cfg.NodeServiceAccount, c.cfg.GatewayServiceAccount, c.cfg.ServiceAccount} {
		id, err := c.cfg.account(account, "serviceAccount", false)
		if err != nil {
			return nil, err
		}
		namespace, name, err := identity.Names(id)
		if err != nil {
			return nil, err
		}
		accounts = append(accounts, pods.Account{Namespace: namespace, Name: name})
	}
	api, err := boundtoken.OpenAPI(c.cfg.Discovery.Kube)
	if err != nil {
		return nil, err
	}
	a := &authority{dir: dir, index: pods.NewIndex(nil), requests: istioca.NewMetrics(c.registry)}
	c.source.TellPods(a.index)
	authorizer := boundtoken.NewAuthorizer(api, a.index, td, accounts[0], accounts[1:], c.cfg.CA.Keys, c.log, boundtoken.NewMetrics(c.registry))
	a.reviewer = authorizer.Reviewer
	names := append([]string{"isthmus-controller." + c.cfg.Namespace + ".svc", "isthmus-controller." + c.cfg.Namespace + ".svc.cluster.local"}, c.cfg.CA.Names...)
	if a.server, err = istioca.New(dir, c.cfg.CA.TTL, names, c.log, istioca.WithAuthorizer(authorizer), istioca.WithMetrics(a.requests)); err != nil {
		return nil, err
	}
	return a, nil
}

// listen binds the address of the CA service.
func (a *authority) listen(c Config) (err error) {
	if a == nil {
		return nil
	}
	if a.listener, err = net.Listen("tcp", c.CA.Address.String()); err != nil {
		return fmt.Errorf("ca.address: %w: is another process listening there?", err)
	}
	return nil
}

func (a *authority) close() {
	if a != nil {
		a.listener.Close()
	}
}

// run serves until ctx ends.
func (a *authority) run(ctx context.Context, log zerolog.Logger) error {
	if a == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.dir.Run(ctx, log) })
	g.Go(func() error { return a.reviewer.Run(ctx) })
	g.Go(func() error { return a.server.Serve(ctx, a.listener) })
	return g.Wait()
}

// pending is what the CA service waits for.
func (a *authority) pending() []string {
	if a != nil && !a.index.Known() {
		return []string{"which pods there are is not known yet: node proxies get no certificates of them"}
	}
	return nil
}
