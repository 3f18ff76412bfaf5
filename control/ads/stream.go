package ads

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/isthmus-mesh/isthmus/control/ads/adspb"
)

const (
	// spreadHeader has the milliseconds over which a client should spread its next attempt
	// when the stream is lost.
	spreadHeader = "isthmus-reconnect-spread-ms"
	// maxTokens bounds barriers of a stream that are not sent yet. The last ones count: each
	// implies those before.
	maxTokens = 16
	// restFactor is how many times as long as the work for a request the stream rests then.
	// So a client that repeats expensive requests takes a quarter of the server's lock.
	restFactor = 3
)

// stream is one client.
type stream struct {
	server *Server
	grpc   grpc.ServerStream
	cancel context.CancelCauseFunc
	signal chan struct{} // something is due

	// guarded by server.mu
	watches       []*watch // as server.collections; nil until the first request for the type
	subscriptions int
	tokens        []string // barriers that are not sent yet
	proof         Proof    // written once, by Server.admit
	admitted      bool     // proof is valid
	left          bool     // the stream is closed

	nonce uint64        // of the last response
	work  time.Duration // with server.mu locked, for the last request
}

func newStream(s *Server, g grpc.ServerStream, cancel context.CancelCauseFunc) *stream {
	return &stream{server: s, grpc: g, cancel: cancel, signal: make(chan struct{}, 1), watches: make([]*watch, len(s.collections))}
}

// serve runs a stream until it closes. Sending and receiving have their own
// goroutines, which end when serve returns. So a stream that the peer does not read
// closes with its proof too.
func (s *Server) serve(g grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(g.Context())
	defer cancel(nil)
	st := newStream(s, g, cancel)
	if err := s.enter(st); err != nil {
		return err
	}
	defer s.leave(st)
	first, err := st.hello(ctx)
	if err != nil {
		return err
	}
	go func() { cancel(st.receive(first)) }()
	go func() { cancel(st.send(ctx)) }()
	<-ctx.Done()
	err = context.Cause(ctx)
	s.lines.Sample(s.cfg.Log.Debug(), st.proof.Identity, "closed").Str("peer", st.proof.Identity).Err(err).Msg("discovery stream closed")
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// hello authenticates the peer by its first request, and returns that.
func (st *stream) hello(ctx context.Context) (*pb.DeltaDiscoveryRequest, error) {
	s := st.server
	ctx, stop := context.WithTimeoutCause(ctx, helloTime, status.Errorf(codes.DeadlineExceeded, "no request within %v", helloTime))
	defer stop()
	m, received := new(pb.DeltaDiscoveryRequest), make(chan error, 1)
	go func() { received <- st.grpc.RecvMsg(m) }()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case err := <-received:
		if err != nil {
			return nil, st.received(err)
		}
	}
	claim := claimOf(st.grpc, m.GetNode())
	proof, err := s.cfg.Authenticate(ctx, claim)
	if err != nil {
		s.cfg.Metrics.Rejected.WithLabelValues(reasonUnauthenticated).Inc()
		s.lines.Sample(s.cfg.Log.Warn(), claim.address(), reasonUnauthenticated).Str("address", claim.address()).Str("node", clip(claim.NodeID)).Err(err).Msg("discovery stream rejected")
		return nil, unauthenticated(err)
	}
	spread := s.admit(st, proof)
	s.lines.Sample(s.cfg.Log.Debug(), proof.Identity, "opened").Str("peer", proof.Identity).Msg("discovery stream opened")
	return m, st.grpc.SendHeader(metadata.Pairs(spreadHeader, strconv.FormatInt(spread.Milliseconds(), 10)))
}

// reject closes the stream because of the peer. That is counted and logged.
func (st *stream) reject(reason string, err error) {
	st.server.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	st.server.lines.Sample(st.server.cfg.Log.Warn(), st.proof.Identity, reason).Str("peer", st.proof.Identity).Str("reason", reason).Err(err).Msg("discovery stream rejected")
	st.cancel(err)
}

// received classifies an error of RecvMsg.
func (st *stream) received(err error) error {
	if status.Code(err) == codes.ResourceExhausted {
		st.reject(reasonOversized, err)
	}
	return err
}

// receive handles requests, beginning with m, until the stream closes.
func (st *stream) receive(m *pb.DeltaDiscoveryRequest) error {
	for {
		if reason, err := st.handle(m); err != nil {
			st.reject(reason, err)
			return err
		}
		pause(st.grpc.Context(), min(restFactor*st.work, time.Second))
		m = new(pb.DeltaDiscoveryRequest)
		if err := st.grpc.RecvMsg(m); err != nil {
			return st.received(err)
		}
	}
}

// handle handles one request.
func (st *stream) handle(m *pb.DeltaDiscoveryRequest) (reason string, err error) {
	s := st.server
	if d := m.GetErrorDetail(); d != nil {
		s.cfg.Metrics.NACKs.Inc()
		s.lines.Sample(s.cfg.Log.Warn(), st.proof.Identity, "nack").Str("peer", st.proof.Identity).Str("type", clip(m.GetTypeUrl())).Str("error", clip(d.GetMessage())).Msg("response rejected by client")
	}
	for _, names := range [][]string{m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe()} {
		for _, n := range names {
			if n == "" || len(n) > maxName {
				return reasonMalformed, status.Errorf(codes.InvalidArgument, "resource name of %d bytes: want 1 to %d", len(n), maxName)
			}
		}
	}
	s.mu.Lock()
	start := time.Now()
	defer func() {
		st.work = time.Since(start)
		s.mu.Unlock()
	}()
	if st.left {
		return "", nil
	}
	if m.GetTypeUrl() == SyncType {
		st.tokens = append(st.tokens, m.GetResourceNamesSubscribe()...)
		st.tokens = st.tokens[max(0, len(st.tokens)-maxTokens):]
		st.wake()
		return "", nil
	}
	i := s.indexOf(m.GetTypeUrl())
	if i < 0 {
		s.cfg.Metrics.Rejected.WithLabelValues(reasonType).Inc()
		s.lines.Sample(s.cfg.Log.Info(), st.proof.Identity, reasonType).Str("peer", st.proof.Identity).Str("type", clip(m.GetTypeUrl())).Msg("unknown resource type requested")
		return "", nil
	}
	w, before := st.watches[i], 0
	if w == nil {
		w = newWatch(s.collections[i], st.proof.Keys[m.GetTypeUrl()], st.wake)
		st.watches[i] = w
		w.open(m.GetResourceNamesSubscribe(), m.GetResourceNamesUnsubscribe(), m.GetInitialResourceVersions())
	} else {
		before = len(w.keys)
		w.subscribe(m.GetResourceNamesSubscribe())
		w.unsubscribe(m.GetResourceNamesUnsubscribe())
	}
	if st.subscriptions += len(w.keys) - before; st.subscriptions > s.cfg.MaxSubscriptions {
		return reasonSubscriptions, status.Errorf(codes.ResourceExhausted, "more than %d subscriptions", s.cfg.MaxSubscriptions)
	}
	return "", nil
}

// wake makes send look for responses.
func (st *stream) wake() {
	select {
	case st.signal <- struct{}{}:
	default:
	}
}

// send sends responses until the stream closes.
func (st *stream) send(ctx context.Context) error {
	for {
		m := st.next()
		if m == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-st.signal:
			}
			continue
		}
		st.nonce++
		m.Nonce = strconv.FormatUint(st.nonce, 10)
		if err := st.grpc.SendMsg(m); err != nil {
			return err
		}
		st.server.cfg.Metrics.Resources.Add(float64(len(m.Resources)))
	}
}

// next returns the next response, or nil if none is due.
func (st *stream) next() *pb.DeltaDiscoveryResponse {
	st.server.mu.Lock()
	defer st.server.mu.Unlock()
	for _, w := range st.watches {
		if w == nil {
			continue
		}
		if m := w.take(); m != nil {
			return m
		}
	}
	if len(st.tokens) == 0 {
		return nil
	}
	m := &pb.DeltaDiscoveryResponse{TypeUrl: SyncType}
	for _, t := range st.tokens {
		if encoded, _, err := (Resource{Name: t}).encode(SyncType); err == nil {
			m.Resources = append(m.Resources, encoded)
		}
	}
	st.tokens = nil
	return m
}

// clip bounds what a peer can put into a line.
func clip(s string) string { return s[:min(len(s), 256)] }
