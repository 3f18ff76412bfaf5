package healthstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ServerConfig is what a gateway's end of the health streams needs.
// Ledger, Network and Authorize are required.
type ServerConfig struct {
	Name    string // of the gateway, for the node proxy's log
	Network string // of the gateway
	Ledger  *peer.Ledger

	// Authorize says whether peer may attach as node.
	Authorize func(peer spiffeid.ID, node string) error
	// OnNode says whether an endpoint lives on a node. Reports about others
	// are dropped and counted: discovery may be a moment behind. Nil trusts.
	OnNode func(node string, id mesh.EndpointID) bool
	// OnReport is told every record that was new (a fact or a refresh), after
	// it was merged into Ledger. It runs on the stream's goroutine: the next
	// report of that node waits for it.
	OnReport func(node string, records []federation.Record)
	// OnAttach and OnDetach are told when a node gains its first and loses
	// its last stream, in that order. They must not block.
	OnAttach, OnDetach func(node string)

	Log     zerolog.Logger
	Metrics *peer.Metrics

	Heartbeat time.Duration // between signs of life; default 2 s
	Dead      time.Duration // silence, or a stuck write, that ends a stream; default 6 s
	Refresh   time.Duration // between repeats of records that only became fresher; default 10 s
	MaxNodes  int           // streams at once; default 10 000
}

func (c *ServerConfig) setDefaults() {
	c.Heartbeat = orDefault(c.Heartbeat, 2*time.Second)
	c.Dead = orDefault(c.Dead, 6*time.Second)
	c.Refresh = orDefault(c.Refresh, 10*time.Second)
	c.MaxNodes = orDefault(c.MaxNodes, 10_000)
	c.Metrics = c.Metrics.OrDiscard()
	c.OnReport = orNothing2(c.OnReport)
	c.OnAttach, c.OnDetach = orNothing(c.OnAttach), orNothing(c.OnDetach)
}

func orDefault[T ~int | ~int64](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

func orNothing(f func(string)) func(string) {
	if f == nil {
		return func(string) {}
	}
	return f
}

func orNothing2(f func(string, []federation.Record)) func(string, []federation.Record) {
	if f == nil {
		return func(string, []federation.Record) {}
	}
	return f
}

// Server is a gateway's end of the health streams of its node proxies.
// It is safe for concurrent use.
type Server struct {
	cfg  ServerConfig
	once logging.Once

	// mu orders attaching, detaching and their hooks.
	mu    sync.Mutex
	nodes map[string]*attachment
}

type attachment struct {
	incarnation uint64
	end         context.CancelFunc
}

// NewServer returns a server without streams.
func NewServer(cfg ServerConfig) *Server {
	cfg.setDefaults()
	return &Server{cfg: cfg, once: logging.Once{Log: cfg.Log}, nodes: map[string]*attachment{}}
}

// Nodes returns the names of the attached nodes, sorted.
func (s *Server) Nodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.nodes))
	for n := range s.nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Accept serves the stream on conn, whose other end has proved to be id. It
// returns when the stream has ended, which ctx also does, and closes conn.
func (s *Server) Accept(ctx context.Context, conn net.Conn, id spiffeid.ID) {
	defer link.CloseAbruptly(conn)
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(stream, func() { link.CloseAbruptly(conn) })
	defer stop()
	c := &healthConn{conn: conn, dead: s.cfg.Dead}
	hello, err := s.greet(c, id)
	if err != nil {
		s.refused(id, "", err)
		return
	}
	mine := &attachment{hello.GetIncarnation(), cancel}
	if err := s.attach(hello.GetNode(), mine); err != nil {
		s.refused(id, hello.GetNode(), err)
		return
	}
	defer s.detach(hello.GetNode(), mine)
	err = s.serve(stream, c, hello)
	if ctx.Err() == nil {
		s.refused(id, hello.GetNode(), err)
	}
}

// greet reads the Hello and decides whether its node may attach.
func (s *Server) greet(c *healthConn, id spiffeid.ID) (*federationpb.Hello, error) {
	m, err := c.read()
	if err != nil {
		return nil, err
	}
	hello := m.GetHello()
	switch {
	case hello == nil:
		return nil, &peer.MalformedError{Cause: errors.New("the first message must be a hello")}
	case hello.GetNode() == "" || len(hello.GetNode()) > federation.MaxName:
		return nil, &peer.MalformedError{Cause: errors.New("the hello must name its node in 1 to 253 bytes")}
	case hello.GetNetwork() != s.cfg.Network:
		return nil, &federation.ForeignError{Signer: id, Origin: hello.GetNode(), Subject: fmt.Sprintf("network %q", hello.GetNetwork()),
			Reason: fmt.Sprintf("this is a gateway of network %q", s.cfg.Network)}
	}
	if err := s.cfg.Authorize(id, hello.GetNode()); err != nil {
		return nil, &peer.IdentityError{Cause: err}
	}
	return hello, nil
}

// attach registers the node's stream. A stream that is still there is ended:
// its node proxy has reconnected or restarted.
func (s *Server) attach(node string, mine *attachment) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.nodes[node]
	if old != nil && old.incarnation > mine.incarnation {
		return fmt.Errorf("node %q: incarnation %d is older than the attached %d", node, mine.incarnation, old.incarnation)
	}
	if old == nil && len(s.nodes) >= s.cfg.MaxNodes {
		return fmt.Errorf("node %q: %d nodes are attached, the limit: %w", node, len(s.nodes), peer.ErrFull)
	}
	s.nodes[node] = mine
	if old != nil {
		old.end()
		return nil
	}
	s.cfg.Metrics.Attached.Inc()
	s.cfg.Log.Info().Str("node", node).Msg("node attached")
	s.cfg.OnAttach(node)
	return nil
}

func (s *Server) detach(node string, mine *attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[node] != mine {
		return
	}
	delete(s.nodes, node)
	s.cfg.Metrics.Attached.Dec()
	s.cfg.Log.Info().Str("node", node).Msg("node detached")
	s.cfg.OnDetach(node)
}

// serve reads reports here and pushes summaries from a second goroutine, which
// it waits for.
func (s *Server) serve(ctx context.Context, c *healthConn, hello *federationpb.Hello) error {
	err := c.write(&federationpb.HealthMessage{Message: &federationpb.HealthMessage_Welcome{Welcome: &federationpb.Welcome{Gateway: s.cfg.Name}}})
	if err != nil {
		return fmt.Errorf("write welcome: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var pushing sync.WaitGroup
	pushing.Go(func() {
		if err := s.push(ctx, c); err != nil {
			cancel(err)
			link.CloseAbruptly(c.conn)
		}
	})
	err = s.readReports(c, hello)
	cancel(err)
	link.CloseAbruptly(c.conn)
	pushing.Wait()
	return context.Cause(ctx)
}

func (s *Server) readReports(c *healthConn, hello *federationpb.Hello) error {
	for {
		m, err := c.read()
		if err != nil {
			return err
		}
		if m.GetRecords() == nil {
			continue // a heartbeat, or a message of a newer version
		}
		if err := s.report(hello, m.GetRecords()); err != nil {
			return err
		}
	}
}

// report merges what a node says of its own endpoints and passes on the news.
func (s *Server) report(hello *federationpb.Hello, batches *federationpb.Batches) error {
	records, _, err := federation.FromBatches(batches)
	if err != nil {
		return &peer.MalformedError{Cause: err}
	}
	mine := records[:0]
	for _, r := range records {
		if err := federation.OwnsEndpoint(s.cfg.Network, hello.GetNode(), r, nil); err != nil {
			return err
		}
		if s.cfg.OnNode != nil && !s.cfg.OnNode(hello.GetNode(), r.Endpoint.Endpoint) {
			s.cfg.Metrics.Rejected.WithLabelValues("foreign").Inc()
			continue
		}
		mine = append(mine, r)
	}
	var news []federation.Record
	for i, outcome := range s.cfg.Ledger.MergeAll(mine) {
		s.cfg.Metrics.Records.WithLabelValues(outcome.String()).Inc()
		if outcome.Accepted() {
			news = append(news, mine[i])
		}
	}
	if len(news) > 0 {
		s.cfg.OnReport(hello.GetNode(), news)
	}
	return nil
}

// push sends all summaries, then every change at once, and now and then what
// only became fresher. A node that reads slowly gets fewer, later messages; one
// that does not read at all is cut off by the deadline.
func (s *Server) push(ctx context.Context, c *healthConn) error {
	sub := s.cfg.Ledger.OnRefresh()
	defer sub.Close()
	if err := c.writeRecords(s.summaries(nil, true)); err != nil {
		return fmt.Errorf("write summaries: %w", err)
	}
	heartbeat := time.NewTicker(s.cfg.Heartbeat)
	defer heartbeat.Stop()
	refresh := time.NewTicker(s.cfg.Refresh)
	defer refresh.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-sub.C():
			err = c.writeRecords(s.summaries(sub.TakeFacts()))
		case <-refresh.C:
			err = c.writeRecords(s.summaries(sub.Take()))
		case <-heartbeat.C:
			err = c.heartbeat()
		}
		if err != nil {
			return fmt.Errorf("write to node: %w", err)
		}
	}
}

// summaries collects what every origin says of the subjects.
func (s *Server) summaries(subjects []federation.Key, all bool) []federation.Record {
	var out []federation.Record
	if all {
		for _, r := range s.cfg.Ledger.Records() {
			if r.Summary != nil {
				out = append(out, r)
			}
		}
		return out
	}
	for _, k := range subjects {
		if k.Kind == federation.KindSummary {
			out = append(out, s.cfg.Ledger.Subject(k)...)
		}
	}
	return out
}

// Refuse counts and logs, once in a while, that a peer was sent away before Accept
// because of its identity.
func (s *Server) Refuse(id spiffeid.ID, cause error) {
	s.refused(id, "", &peer.IdentityError{Cause: cause})
}

// refused counts and logs why a stream ended. A plain end is none of it.
func (s *Server) refused(id spiffeid.ID, node string, err error) {
	reason := peer.Reason(err)
	if reason == "" {
		s.cfg.Log.Debug().Err(err).Str("node", node).Stringer("peer", id).Msg("health stream ended")
		return
	}
	s.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	s.once.Warn(reason+"/"+id.String(), "health stream refused", err, func(e *zerolog.Event) {
		e.Str("node", node).Stringer("peer", id).Str("reason", reason)
	})
}
