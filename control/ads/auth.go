package ads

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

// Claim is the description that a peer sends of itself, with its evidence.
type Claim struct {
	From     net.Addr
	TLS      *tls.ConnectionState // nil without TLS
	Token    string               // of the header "authorization: Bearer"; "" if there is none
	NodeID   string               // such as ztunnel~10.1.2.3~pod.namespace~…
	Metadata map[string]string    // of the node, as far as values are strings; NODE_NAME, CLUSTER_ID, …
}

// Proof is the result of an authentication. When it expires, the stream is closed and
// the client connects again.
type Proof struct {
	Identity string              // streams are limited and logged by it
	Keys     map[string][]string // keys, by type, that are subscribed without a request
	Expires  time.Time           // zero: never
	// Holds returns nil while the proof is valid before Expires. Nil means always. It is
	// called every second and must not wait.
	Holds func(now time.Time) error
}

// Authenticator returns a proof for a claim, or why there is none. A gRPC status is
// sent to the peer as it is, any other error as Unauthenticated. It may block until ctx
// is done. The name of the node is a claim too: without evidence it must not decide
// anything.
type Authenticator func(ctx context.Context, claim Claim) (Proof, error)

// address returns the host of the peer, for logs.
func (c Claim) address() string {
	if c.From == nil {
		return "unknown"
	}
	host, _, err := net.SplitHostPort(c.From.String())
	if err != nil {
		return c.From.String()
	}
	return host
}

// check returns why p is no longer valid.
func (p Proof) check(now time.Time) error {
	if !p.Expires.IsZero() && !now.Before(p.Expires) {
		return fmt.Errorf("proof expired at %s", p.Expires.UTC().Format(time.RFC3339))
	}
	if p.Holds != nil {
		return p.Holds(now)
	}
	return nil
}

// claimOf collects the claim of the peer of g.
func claimOf(g grpc.ServerStream, node *pb.Node) Claim {
	c := Claim{NodeID: node.GetId(), Metadata: map[string]string{}}
	for k, v := range node.GetMetadata().GetFields() {
		if s := v.GetStringValue(); s != "" {
			c.Metadata[k] = s
		}
	}
	if p, ok := peer.FromContext(g.Context()); ok {
		c.From = p.Addr
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			c.TLS = &t.State
		}
	}
	md, _ := metadata.FromIncomingContext(g.Context())
	if values := md.Get("authorization"); len(values) == 1 {
		scheme, token, _ := strings.Cut(values[0], " ")
		if strings.EqualFold(scheme, "bearer") {
			c.Token = strings.TrimSpace(token)
		}
	}
	return c
}

// unauthenticated returns err as a status.
func unauthenticated(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.Error(codes.Unauthenticated, err.Error())
}
