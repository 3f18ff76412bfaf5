package healthstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
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

func (r reviewer) Prove(ctx context.Context, peer spiffeid.ID, claim Claim) (Proof, error) {
	if _, ok := ctx.Deadline(); !ok {
		return Proof{}, errors.New("a review must be bounded in time")
	}
	if err := r.Admit(peer); err != nil {
		return Proof{}, err
	}
	if node, ok := r[string(claim.Token)]; !ok || node != claim.Node {
		return Proof{}, fmt.Errorf("the token is not that of node %q", claim.Node)
	}
	return Proof{How: "review"}, nil
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

// lasting is a reviewer whose proofs end.
type lasting struct {
	reviewer
	lasts time.Duration
	gone  *atomic.Bool
}

func (r lasting) Prove(ctx context.Context, peer spiffeid.ID, claim Claim) (Proof, error) {
	p, err := r.reviewer.Prove(ctx, peer, claim)
	if err == nil && r.gone.Load() {
		err = errors.New("its pod is gone")
	}
	p.Expires = time.Now().Add(r.lasts)
	p.Holds = func(time.Time) error {
		if r.gone.Load() {
			return errors.New("its pod is gone")
		}
		return nil
	}
	return p, err
}

func TestAStreamEndsWithWhatProvedItsNode(t *testing.T) {
	inBubble(t, func(w *world) {
		var gone atomic.Bool
		s := w.gateway("gw-1", func(c *ServerConfig) { c.Prover = lasting{reviewer{"token-1": "node-1"}, 10 * time.Second, &gone} })
		var asked atomic.Int32
		w.node("node-1", func(c *ClientConfig) {
			c.Self = trust.Workload("nodeproxy")
			c.Token = func(context.Context) ([]byte, error) { asked.Add(1); return []byte("token-1"), nil }
		}).attached(1)
		if got := s.health.Proven(); len(got) != 1 || got[0].Node != "node-1" || got[0].How != "review" || got[0].Until.IsZero() {
			t.Errorf("proven: %+v", got)
		}
		time.Sleep(9 * time.Second)
		if n := asked.Load(); n != 1 {
			t.Errorf("%d tokens were read before the first expired; want one", n)
		}
		time.Sleep(4 * time.Second)
		if n := asked.Load(); n != 2 {
			t.Errorf("%d tokens were read after the first had expired; want two", n)
		}
		if got := s.health.Nodes(); !slices.Equal(got, []string{"node-1"}) {
			t.Errorf("attached: %v; want node-1 again", got)
		}
		gone.Store(true)
		time.Sleep(2 * time.Second)
		if got := s.health.Nodes(); len(got) != 0 {
			t.Errorf("attached: %v; want nobody, as the pod is gone", got)
		}
	})
}
