package istioca

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/identity/istioca/istiocapb"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

const (
	// maxMessage bounds a request; one of ztunnel has about 600 bytes.
	maxMessage = 16 << 10
	// maxStreams bounds the requests that one connection may have open. A ztunnel asks
	// for at most 8 certificates at a time.
	maxStreams = 8
	// handshakeTime is how long a new connection may take to become HTTP/2.
	handshakeTime = 10 * time.Second
	// pingEvery is how often a client may ping, with or without a request.
	// ztunnel does so every 30 s; gRPC would drop it for less than 5 min.
	pingEvery = 10 * time.Second
	// stopTime is how long requests may go on when the server stops.
	stopTime = 2 * time.Second
)

// Names are what ztunnel calls its certificate authority in Kubernetes and
// elsewhere. The server proves them and what else the caller names.
var Names = []string{"istiod.istio-system.svc", "localhost", "127.0.0.1"}

// Authority is whose certificates a server issues: a [identity.CA], or a
// [identity.CADir] that is read again when it changes.
type Authority interface {
	// Current is the CA of this moment; always of one trust domain. It must not wait.
	Current() *identity.CA
}

// Server issues certificates of one CA. Make it with New.
type Server struct {
	authority  Authority
	ttl        time.Duration
	names      []string
	log        zerolog.Logger
	authorizer Authorizer // nil: anybody may be anybody
	metrics    *Metrics
	callers    limiter
	refusals   logging.PeerLimits  // by caller
	issued     *logging.PeerLimits // by caller

	mu     sync.Mutex
	cert   *tls.Certificate // what it proves its names with
	signer *identity.CA     // of cert
}

// Option changes a Server.
type Option func(*Server)

// WithAuthorizer makes the server ask a who may have which certificate.
func WithAuthorizer(a Authorizer) Option { return func(s *Server) { s.authorizer = a } }

// WithMetrics makes the server count in m.
func WithMetrics(m *Metrics) Option { return func(s *Server) { s.metrics = m } }

// New returns a server that signs with the CA of authority, for ttl at most, and proves
// Names and names.
func New(authority Authority, ttl time.Duration, names []string, log zerolog.Logger, options ...Option) (*Server, error) {
	if ttl < identity.MinTTL {
		return nil, fmt.Errorf("serve certificates: ttl %s is too short: want at least %s", ttl, identity.MinTTL)
	}
	s := &Server{authority: authority, ttl: ttl, names: append(append([]string{}, Names...), names...), log: log, refusals: logging.PeerLimits{Every: time.Minute, Log: &log}, issued: logging.ByPeer(log)}
	for _, o := range options {
		o(s)
	}
	if s.metrics == nil {
		s.metrics = NewMetrics(nil)
	}
	if _, err := s.certificate(nil); err != nil {
		return nil, fmt.Errorf("serve certificates: %w", err)
	}
	return s, nil
}

// Serve answers requests on l until ctx ends, and closes l. It holds at most maxConns
// connections and a few buffers for each.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.certificate})),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.ReadBufferSize(bufferSize),
		grpc.WriteBufferSize(bufferSize),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime, MaxConnectionAge: ageTime, MaxConnectionAgeGrace: stopTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
	)
	g.RegisterService(&service, s)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		late := time.AfterFunc(stopTime, g.Stop)
		defer late.Stop()
		g.GracefulStop()
	})
	err := g.Serve(newBoundedListener(l, s.metrics.evicted.Inc))
	if stop() { // ctx has not ended: the listener has failed
		g.Stop()
		return fmt.Errorf("serve certificates on %s: %w", l.Addr(), err)
	}
	<-stopped
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve certificates on %s: %w", l.Addr(), err)
	}
	return nil
}

// certificate is what the server proves its names with; made anew when half of
// its life is over, and when another root signs.
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	ca := s.authority.Current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert != nil && s.signer == ca && time.Until(s.cert.Leaf.NotAfter) > s.ttl/2 {
		return s.cert, nil
	}
	cert, err := ca.ServerCertificate(s.names, s.ttl)
	if err != nil {
		return nil, err
	}
	s.cert, s.signer = cert, ca
	return cert, nil
}

// service is what protoc-gen-go-grpc would generate for the one method.
var service = grpc.ServiceDesc{
	ServiceName: "istio.v1.auth.IstioCertificateService",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "CreateCertificate",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(istiocapb.IstioCertificateRequest)
			if err := decode(in); err != nil {
				return nil, err
			}
			defer requestUnderWay(ctx)()
			return srv.(*Server).createCertificate(ctx, in)
		},
	}},
}
