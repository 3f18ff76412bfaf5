package istioca

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Authorizer says who asks for certificates. Without one a server gives anybody any
// identity of its trust domain. Safe for concurrent use.
type Authorizer interface {
	// Authenticate returns who has brought the bearer token of a request from an address. An error that
	// matches ErrUnavailable says that it cannot be told now; any other one, that it is
	// nobody who may ask for anything. It may wait until ctx ends.
	Authenticate(ctx context.Context, from netip.Addr, token string) (Caller, error)
}

// Caller is who asks.
type Caller interface {
	// Key is what its requests are counted by: the same for all requests of one pod.
	Key() string
	// String says who it is, for the log.
	String() string
	// May returns nil if it may have a certificate of id now, else why not. It must not
	// wait.
	May(id spiffeid.ID) error
}

// ErrUnavailable is matched by errors of an Authorizer that cannot ask whom it has to.
var ErrUnavailable = errors.New("cannot be told now")

// maxToken bounds a bearer token in bytes; a bound one of Kubernetes has about 1 500.
const maxToken = 16 << 10

// bearer returns the token of the request.
func bearer(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return "", status.Errorf(codes.Unauthenticated, "%d authorization headers: send one, Bearer and a token of the pod's service account with audience istio-ca", len(values))
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case !strings.EqualFold(scheme, "bearer") || token == "":
		return "", status.Error(codes.Unauthenticated, "the authorization header has no bearer token: send a token of the pod's service account with audience istio-ca")
	case len(token) > maxToken:
		return "", status.Errorf(codes.Unauthenticated, "bearer token of %d bytes: want at most %d", len(token), maxToken)
	}
	return strings.TrimSpace(token), nil
}

// anybody is the caller of a server without an Authorizer.
type anybody struct{}

func (anybody) Key() string           { return "" }
func (anybody) String() string        { return "anybody" }
func (anybody) May(spiffeid.ID) error { return nil }

// authenticate returns who asks. The error is a gRPC status.
func (s *Server) authenticate(ctx context.Context) (Caller, error) {
	if s.authorizer == nil {
		return anybody{}, nil
	}
	token, err := bearer(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.authorizer.Authenticate(ctx, address(ctx), token)
	switch {
	case errors.Is(err, ErrUnavailable):
		return nil, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return c, nil
}
