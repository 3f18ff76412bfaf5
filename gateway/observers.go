package gateway

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
)

// observers is who may follow all that other networks export: the controller, by its
// identity.
func (g *Gateway) observers() (healthstream.Observers, error) {
	account, err := g.cfg.controllerAccount()
	if err != nil {
		return healthstream.Observers{}, err
	}
	return healthstream.Observers{Offered: g.offered, Notices: g.notices, Admit: func(peer spiffeid.ID) error {
		if account.IsZero() || peer != account {
			return fmt.Errorf("identity %s may not observe: want the controller's, of service account %q (controllerServiceAccount)", peer, g.cfg.ControllerServiceAccount)
		}
		return nil
	}}, nil
}

// offered are the services that other networks export, sorted.
func (g *Gateway) offered() []string {
	if g.fed == nil {
		return nil // New has not come that far
	}
	names := map[string]struct{}{}
	g.fed.Read(func(l *ledger.Ledger) {
		for _, n := range l.Networks() {
			if n == g.cfg.Network {
				continue
			}
			for _, s := range l.Services(n) {
				names[s] = struct{}{}
			}
		}
	})
	return slices.Sorted(maps.Keys(names))
}
