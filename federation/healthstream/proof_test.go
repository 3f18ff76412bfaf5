package healthstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/internal/meshtest/trust"
)

// reviewer is a platform whose certificates name no nodes: it has given each node
// a token.
type reviewer map[string]string

func (reviewer) Admit(peer spiffeid.ID) error {
	if peer != trust.Workload("nodeproxy") {
		return fmt.Errorf("%q is no node proxy", peer)
	}
	return nil
}

func (r reviewer) Prove(ctx context.Context, peer spiffeid.ID, claim Claim) error {
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("a review must be bounded in time")
	}
	if err := r.Admit(peer); err != nil {
		return err
	}
	if node, ok := r[string(claim.Token)]; !ok || node != claim.Node {
		return fmt.Errorf("the token is not that of node %q", claim.Node)
	}
	return nil
}

func TestATokenProvesTheNodeWhereIdentitiesDoNotNameIt(t *testing.T) {
	inBubble(t, func(w *world) {
		s := w.gateway("gw-1", func(c *ServerConfig) { c.Prover = reviewer{"token-1": "node-1", "token-2": "node-2"} })
		with := func(token string, err error) func(*ClientConfig) {
			return func(c *ClientConfig) {
				c.Self = trust.Workload("nodeproxy")
				c.Token = func(context.Context) ([]byte, error) { return []byte(token), err }
			}
		}
		w.node("node-1", with("token-1", nil)).attached(1)
		w.node("node-2", with("token-1", nil))
		w.node("node-3", with("", errors.New("no token")))
		time.Sleep(3 * time.Second)
		if got := s.health.Nodes(); !slices.Equal(got, []string{"node-1"}) {
			t.Errorf("attached: %v; want node-1 alone", got)
		}
		if rejected(s.metrics, "identity") == 0 {
			t.Error("a forged name was not counted")
		}
	})
}
