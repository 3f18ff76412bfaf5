package gateway

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery/kube/boundtoken"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

// holders are the reviews of tokens.
type holders map[string]boundtoken.Holder

// fakeTokens is a reviewer that knows them.
type fakeTokens struct {
	holders
	refused map[boundtoken.Reason]int
}

func (h *fakeTokens) Review(_ context.Context, _ netip.Addr, token string) (boundtoken.Holder, error) {
	if x, ok := h.holders[token]; ok {
		return x, nil
	}
	return boundtoken.Holder{}, &boundtoken.Refusal{Reason: boundtoken.Denied, Err: errors.New("nobody's")}
}

func (h *fakeTokens) Refuse(why boundtoken.Reason) {
	if h.refused == nil {
		h.refused = map[boundtoken.Reason]int{}
	}
	h.refused[why]++
}

func (h *fakeTokens) Holds(boundtoken.Holder, time.Time) error { return nil }

func TestAPlainIdentityNeedsTheTokenOfItsNode(t *testing.T) {
	td := spiffeid.RequireTrustDomainFromString("cluster.local")
	account := spiffeid.RequireFromSegments(td, "ns", "isthmus-system", "sa", "nodeproxy")
	named := spiffeid.RequireFromSegments(td, "ns", "isthmus-system", "sa", "nodeproxy", "node", "west", "node-1")
	pod := spiffeid.RequireFromSegments(td, "ns", "demo", "sa", "shop")
	expires := time.Now().Add(time.Hour)
	var log bytes.Buffer
	tokens := &fakeTokens{holders: holders{"one": {Node: "node-1", Expires: expires, How: boundtoken.ByReview}}}
	with := nodeProver{healthstream.NodeIdentities{Account: account, Network: "west"}, tokens, zerolog.New(&log), &logging.PeerLimits{Every: time.Minute}}
	without := nodeProver{with.certificates, nil, zerolog.Nop(), with.lines}
	for name, x := range map[string]struct {
		prover      nodeProver
		peer        spiffeid.ID
		node, token string
		how, want   string // how, or why not
	}{
		"by token":                        {with, account, "node-1", "one", "review", ""},
		"by token with a newline":         {with, account, "node-1", "one\n", "review", ""},
		"by another node's token":         {with, account, "node-2", "one", "", "(node)"},
		"by nobody's token":               {with, account, "node-1", "two", "", "(denied)"},
		"without a token":                 {with, account, "node-1", "", "", "federation.token"},
		"by certificate":                  {with, named, "node-1", "", "certificate", ""},
		"by certificate, as another node": {with, named, "node-2", "one", "", "may not speak as node"},
		"a pod with a token":              {with, pod, "node-1", "one", "", "may not report health"},
		"plain, without a cluster":        {without, account, "node-1", "one", "", "does not say which node"},
		"by certificate, without one":     {without, named, "node-1", "", "certificate", ""},
	} {
		claim := healthstream.Claim{Network: "west", Node: x.node, Token: []byte(x.token), From: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}}
		p, err := x.prover.Prove(t.Context(), x.peer, claim)
		if x.want == "" && (err != nil || p.How != x.how) || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: proven by %q, %v; want %q, %q", name, p.How, err, x.how, x.want)
		}
		if admitted := x.prover.Admit(x.peer) == nil; admitted != (x.peer != pod && !(x.prover.tokens == nil && x.peer == account)) {
			t.Errorf("%s: admitted: %t", name, admitted)
		}
		if x.how == "review" && !p.Expires.Equal(expires) {
			t.Errorf("%s: lasts until %v; want the token's %v", name, p.Expires, expires)
		}
	}
	for _, want := range []string{`"node":"node-2"`, `"reason":"node"`, `"reason":"denied"`, `"address":"192.0.2.7:4711"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, &log)
		}
	}
	if tokens.refused[boundtoken.WrongNode] != 1 {
		t.Errorf("%d tokens counted as another node's; want one", tokens.refused[boundtoken.WrongNode])
	}
	lines := strings.Count(log.String(), "\n")
	for range 100 {
		with.Prove(t.Context(), account, healthstream.Claim{Network: "west", Node: "node-2", Token: []byte("one")})
	}
	if more := strings.Count(log.String(), "\n") - lines; more > 1 {
		t.Errorf("%d lines of one that comes again and again", more)
	}
}
