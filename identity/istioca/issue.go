package istioca

import (
	"context"
	"net"
	"net/netip"
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

// createCertificate answers one request: the leaf, then the roots that are to be
// believed, all in one text.
func (s *Server) createCertificate(ctx context.Context, in *istiocapb.IstioCertificateRequest) (*istiocapb.IstioCertificateResponse, error) {
	out, err := s.answer(ctx, in)
	s.metrics.count(err)
	return out, err
}

func (s *Server) answer(ctx context.Context, in *istiocapb.IstioCertificateRequest) (*istiocapb.IstioCertificateResponse, error) {
	caller, err := s.authenticate(ctx)
	if err != nil {
		s.refused(ctx, host(ctx), spiffeid.ID{}, err)
		return nil, err
	}
	if s.authorizer != nil && !s.callers.allow(caller.Key(), time.Now()) {
		err := status.Errorf(codes.ResourceExhausted, "%s has asked for more than %d certificates at once, or %d a second: ask again later", caller, burst, perSecond)
		s.refused(ctx, caller.String(), spiffeid.ID{}, err)
		return nil, err
	}
	ca := s.authority.Current()
	r, err := permit(ca, in)
	if err == nil {
		if why := caller.May(r.ID); why != nil {
			err = status.Error(codes.PermissionDenied, why.Error())
		}
	}
	if err != nil {
		s.refused(ctx, caller.String(), r.ID, err)
		return nil, err
	}
	leaf, err := ca.Sign(r.ID, r.Key, s.lifetime(in.GetValidityDuration()))
	if err != nil {
		s.issued.Sample(s.log.Error(), caller.Key(), "failed").Str("peer", from(ctx)).Stringer("caller", caller).Stringer("identity", r.ID).Err(err).Msg("could not issue a certificate")
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.issued.Sample(s.log.Info(), caller.Key(), "issued").Str("peer", from(ctx)).Stringer("caller", caller).Stringer("identity", r.ID).Time("not_after", leaf.NotAfter).Msg("issued a certificate")
	return &istiocapb.IstioCertificateResponse{CertChain: []string{
		string(identity.EncodeCertificates(leaf)),
		string(identity.EncodeCertificates(ca.Roots()...)),
	}}, nil
}

// refused logs a refused request: at most one line per minute for each caller, identity
// and status code.
func (s *Server) refused(ctx context.Context, caller string, id spiffeid.ID, err error) {
	e := s.refusals.Sample(s.log.Warn(), caller, status.Code(err).String()+" "+id.String())
	if e == nil {
		return
	}
	e.Str("peer", from(ctx)).Str("caller", caller)
	if !id.IsZero() {
		e.Stringer("identity", id)
	}
	e.Str("error", clip(status.Convert(err).Message())).Stringer("code", status.Code(err)).Msg("refused a certificate")
}

// clip bounds what a stranger can put into a line.
func clip(s string) string {
	const length = 512
	if len(s) <= length {
		return s
	}
	return s[:length] + "…"
}

// permit reads what in asks for, or says why it is refused. The error is a gRPC
// status.
func permit(ca *identity.CA, in *istiocapb.IstioCertificateRequest) (identity.Request, error) {
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
	if !r.ID.MemberOf(ca.TrustDomain()) {
		return r, status.Errorf(codes.PermissionDenied, "identity %q is in trust domain %q, this ca signs for %q: use the ca of that mesh", r.ID, r.ID.TrustDomain(), ca.TrustDomain())
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

// address is that of the caller without its port; none if it has no IP address.
func address(ctx context.Context) netip.Addr {
	a, err := netip.ParseAddrPort(from(ctx))
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr()
}

// host is the address of the caller without its port, for counting lines.
func host(ctx context.Context) string {
	h, _, err := net.SplitHostPort(from(ctx))
	if err != nil {
		return from(ctx)
	}
	return h
}
