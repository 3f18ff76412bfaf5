package istioca

import (
	"context"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca/istiocapb"
)

// impersonated is the key of the request's metadata with which a proxy of many
// workloads says for which of them it asks.
const impersonated = "ImpersonatedIdentity"

// createCertificate answers one request: the leaf, then the root.
func (s *Server) createCertificate(ctx context.Context, in *istiocapb.IstioCertificateRequest) (*istiocapb.IstioCertificateResponse, error) {
	r, err := s.permit(in)
	if err != nil {
		s.log.Warn().Str("peer", from(ctx)).Err(err).Msg("refused a certificate")
		return nil, err
	}
	leaf, err := s.ca.Sign(r.ID, r.Key, s.lifetime(in.GetValidityDuration()))
	if err != nil {
		s.log.Error().Str("peer", from(ctx)).Stringer("identity", r.ID).Err(err).Msg("could not issue a certificate")
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.log.Info().Str("peer", from(ctx)).Stringer("identity", r.ID).Time("not_after", leaf.NotAfter).Msg("issued a certificate")
	return &istiocapb.IstioCertificateResponse{CertChain: []string{
		string(identity.EncodeCertificates(leaf)),
		string(identity.EncodeCertificates(s.ca.Certificate())),
	}}, nil
}

// permit reads what in asks for, or says why it is refused. The error is a gRPC
// status.
func (s *Server) permit(in *istiocapb.IstioCertificateRequest) (identity.Request, error) {
	r, err := identity.ParseRequest([]byte(in.GetCsr()))
	if err != nil {
		return r, status.Error(codes.InvalidArgument, err.Error())
	}
	if v, ok := in.GetMetadata().GetFields()[impersonated]; ok {
		id, err := spiffeid.FromString(v.GetStringValue())
		if err != nil {
			return r, status.Errorf(codes.InvalidArgument, "metadata %s %q: %v: write the SPIFFE ID of the request", impersonated, v.GetStringValue(), err)
		}
		if id != r.ID {
			return r, status.Errorf(codes.PermissionDenied, "metadata %s is %q, the request is for %q: ask for one of them", impersonated, id, r.ID)
		}
	}
	if !r.ID.MemberOf(s.ca.TrustDomain()) {
		return r, status.Errorf(codes.PermissionDenied, "identity %q is in trust domain %q, this ca signs for %q: use the ca of that mesh", r.ID, r.ID.TrustDomain(), s.ca.TrustDomain())
	}
	return r, nil
}

// lifetime is what was asked for in seconds, but at most the server's own; that
// also if nothing was asked for.
func (s *Server) lifetime(seconds int64) time.Duration {
	if seconds <= 0 || seconds >= int64(s.ttl/time.Second) {
		return s.ttl
	}
	return time.Duration(seconds) * time.Second
}

// from is the address of the caller, for the log.
func from(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
