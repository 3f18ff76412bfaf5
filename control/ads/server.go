package ads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
	"github.com/isthmus-mesh/isthmus/internal/logging"
)

const (
	serviceName = "envoy.service.discovery.v3.AggregatedDiscoveryService"
	methodName  = "DeltaAggregatedResources"

	// helloTime is how long a peer may take for its handshake and first request, and the
	// authentication as well.
	helloTime = 10 * time.Second
	// pingTime and pingTimeout find peers that are gone.
	pingTime    = 10 * time.Second
	pingTimeout = 5 * time.Second
	// minPing is how often peers may ping. Stock ztunnel does it every 30 s. gRPC's default
	// of 5 min would close its connections.
	minPing = 5 * time.Second
	// requestWindow is the flow-control window of requests. A fixed one saves the
	// bandwidth probes of gRPC.
	requestWindow = 64 << 10
	// maxHeaders bounds the headers of a request. A bound token of Kubernetes has about
	// 1 500 bytes.
	maxHeaders = 24 << 10
)

// ServerConfig configures a [Server]. Types, Gateway, Instance and Authenticate are
// required.
type ServerConfig struct {
	Types             []string // type URLs, sent in this order
	Gateway, Instance string   // name and process of this gateway
	Authenticate      Authenticator

	MaxStreams         int           // default 10 000
	MaxIdentityStreams int           // per [Proof].Identity; one more closes the oldest; default 4
	MaxSubscriptions   int           // per stream; default 20 000
	MaxRequest         int           // bytes; it bounds what a client may list when it reconnects; default 8 MiB
	SpreadPerStream    time.Duration // times the number of streams, it is the time over which clients spread reconnects; default 3 ms

	Log     zerolog.Logger
	Metrics *Metrics // nil: none
}

func (c *ServerConfig) setDefaults() {
	c.MaxStreams = cmp.Or(c.MaxStreams, 10_000)
	c.MaxIdentityStreams = cmp.Or(c.MaxIdentityStreams, 4)
	c.MaxSubscriptions = cmp.Or(c.MaxSubscriptions, 20_000)
	c.MaxRequest = cmp.Or(c.MaxRequest, 8<<20)
	c.SpreadPerStream = cmp.Or(c.SpreadPerStream, 3*time.Millisecond)
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
}

// Server sends resources to clients. Safe for concurrent use.
type Server struct {
	cfg   ServerConfig
	lines *logging.PeerLimits // of lines that a peer can cause, by identity

	mu          sync.Mutex
	collections []*collection // sent in this order; SourceType first
	streams     map[*stream]struct{}
	identities  map[string][]*stream // authenticated streams, oldest first
	closed      bool
}

// NewServer returns a server without resources. [Server.SetSource] makes it eligible
// for clients.
func NewServer(cfg ServerConfig) *Server {
	cfg.setDefaults()
	s := &Server{cfg: cfg, lines: logging.ByPeer(cfg.Log), streams: map[*stream]struct{}{}, identities: map[string][]*stream{}}
	for _, t := range slices.Concat([]string{SourceType}, cfg.Types) {
		s.collections = append(s.collections, newCollection(t))
	}
	s.SetSource(false, false) // always valid
	return s
}

// Options are the options of the gRPC server that it is registered at. Add
// credentials.
func (s *Server) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(s.cfg.MaxRequest),
		grpc.MaxConcurrentStreams(16),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(helloTime),
		grpc.StaticStreamWindowSize(requestWindow),
		grpc.StaticConnWindowSize(requestWindow),
		grpc.ReadBufferSize(4 << 10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingTime, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// Register adds the discovery service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) { g.RegisterService(&service, s) }

var errClosed = status.Error(codes.Unavailable, "gateway is shutting down")

// service is what protoc-gen-go-grpc would generate for the one method.
var service = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName:    methodName,
		Handler:       func(s any, g grpc.ServerStream) error { return s.(*Server).serve(g) },
		ServerStreams: true, ClientStreams: true,
	}},
}

// Run closes streams whose proof is no longer valid. When ctx is done, it closes all
// streams and rejects new ones.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closed = true
			for st := range s.streams {
				st.cancel(errClosed)
			}
			return nil
		case now := <-tick.C:
			for _, st := range s.admitted() {
				if err := st.proof.check(now); err != nil {
					st.reject(reasonUnauthenticated, status.Errorf(codes.Unauthenticated, "authenticate again: %v", err))
				}
			}
		}
	}
}

// admitted returns the authenticated streams.
func (s *Server) admitted() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Concat(slices.Collect(maps.Values(s.identities))...)
}

// Apply changes resources. A stream receives the changes of one call together, the
// types in their order. The error names resources that are invalid and ignored.
func (s *Server) Apply(updates ...Update) error {
	var problems []error
	var changes []func() // encoded before the lock
	for _, u := range updates {
		c := s.collectionOf(u.Type)
		if c == nil {
			problems = append(problems, fmt.Errorf("type %s is not configured", u.Type))
			continue
		}
		for _, r := range u.Resources {
			encoded, version, err := r.encode(u.Type)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			changes = append(changes, func() { c.put(r.Name, r.keys(), version, encoded) })
		}
		for _, name := range u.Removed {
			changes = append(changes, func() { c.remove(name) })
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, change := range changes {
		change()
	}
	return errors.Join(problems...)
}

// SetSource publishes whether this server has complete data, and whether the data may be
// outdated. Clients choose their active source by it.
func (s *Server) SetSource(synchronized, stale bool) error {
	body, err := proto.Marshal(&pb.Source{Gateway: s.cfg.Gateway, Instance: s.cfg.Instance, Synchronized: synchronized, Stale: stale})
	if err != nil {
		return fmt.Errorf("source %q: %w", s.cfg.Gateway, err)
	}
	return s.Apply(Update{Type: SourceType, Resources: []Resource{{Name: s.cfg.Gateway + "/" + s.cfg.Instance, Body: body}}})
}

// collectionOf returns the collection of a type, or nil.
func (s *Server) collectionOf(typeURL string) *collection {
	if i := s.indexOf(typeURL); i >= 0 {
		return s.collections[i]
	}
	return nil
}

// indexOf returns the position of a type in collections, which never changes, or -1.
func (s *Server) indexOf(typeURL string) int {
	return slices.IndexFunc(s.collections, func(c *collection) bool { return c.typeURL == typeURL })
}

// enter adds a stream that is not authenticated yet.
func (s *Server) enter(st *stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := len(s.streams); {
	case s.closed:
		return errClosed
	case n >= s.cfg.MaxStreams:
		s.cfg.Metrics.Rejected.WithLabelValues(reasonStreams).Inc()
		return status.Errorf(codes.ResourceExhausted, "%d discovery streams are open, the limit", n)
	}
	s.streams[st] = struct{}{}
	return nil
}

// admit authenticates a stream and returns how long its client should spread its next
// attempt.
func (s *Server) admit(st *stream, proof Proof) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.proof, st.admitted = proof, true
	same := append(s.identities[proof.Identity], st)
	s.identities[proof.Identity] = same
	if n := len(same) - s.cfg.MaxIdentityStreams; n > 0 {
		same[n-1].reject(reasonStreams, status.Errorf(codes.ResourceExhausted, "the limit is %d streams of %s: the oldest was closed", s.cfg.MaxIdentityStreams, proof.Identity))
	}
	s.cfg.Metrics.Streams.Inc()
	return time.Duration(len(s.streams)) * s.cfg.SpreadPerStream
}

// leave undoes enter and admit.
func (s *Server) leave(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.left = true
	for _, w := range st.watches {
		if w != nil {
			w.close()
		}
	}
	delete(s.streams, st)
	if !st.admitted {
		return
	}
	s.cfg.Metrics.Streams.Dec()
	id := st.proof.Identity
	if s.identities[id] = slices.DeleteFunc(s.identities[id], func(x *stream) bool { return x == st }); len(s.identities[id]) == 0 {
		delete(s.identities, id)
	}
}
