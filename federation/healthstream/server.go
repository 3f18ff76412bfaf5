package healthstream

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/discovery/excerpt"
	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// ServerConfig is what a gateway's end of the health streams needs.
// Network, Prover, Place and Source are required.
type ServerConfig struct {
	Name    string // of the gateway, for the node proxy's log
	Network string // of the gateway

	Prover Prover
	// Place says where discovery has an endpoint of this network. Call
	// [Server.Relocate] when its answers change. It must not wait.
	Place Place
	// Source answers what node proxies ask for. Call [Server.Changed] when its
	// answers change.
	Source Source

	// Holds returns the networks, sorted, of which Source knows all that there is to
	// know: what it does not say of these is withdrawn. It is asked every second, and
	// must not wait. Nil is none.
	Holds func() []string

	// Observers is who may follow all that other networks export; the zero value lets
	// nobody.
	Observers Observers
	// Excerpts is what node proxies are told of the own network's discovery; nil: nothing.
	Excerpts *excerpt.Index
	// Offer says whether Excerpts has everything, and whether its source has been away for
	// a while. It is asked every second, and must not wait. Nil is yes, and no.
	Offer func() (synchronised, behind bool)

	// OnEdge is told what changed in what is believed of this network's ports, in
	// order and one call at a time. It must not wait.
	OnEdge func([]Edge)
	// OnDetach is told when a node has lost its last stream. It must not wait.
	OnDetach func(node string)

	// Settled, when closed, says that this gateway has heard the others: until then it
	// tells node proxies nothing of services, and they keep what they know. Nil is
	// closed.
	Settled <-chan struct{}

	Log     zerolog.Logger
	Metrics *peer.Metrics

	Dead          time.Duration // silence, or a stuck write, that ends a stream; default 6 s
	MaxNodes      int           // streams at once; default 10 000
	MaxServices   int           // that one node proxy may follow; default 2 000
	SpreadPerNode time.Duration // that the welcome makes node proxies spread their next attempt over; default 3 ms
}

func (c *ServerConfig) setDefaults() {
	c.Dead = orDefault(c.Dead, 6*time.Second)
	c.MaxNodes = orDefault(c.MaxNodes, 10_000)
	c.MaxServices = orDefault(c.MaxServices, MaxServices)
	c.SpreadPerNode = orDefault(c.SpreadPerNode, 3*time.Millisecond)
	c.Metrics = c.Metrics.OrDiscard()
	if c.OnEdge == nil {
		c.OnEdge = func([]Edge) {}
	}
	if c.Holds == nil {
		c.Holds = func() []string { return nil }
	}
	if c.Observers.Offered == nil {
		c.Observers.Offered = func() []string { return nil }
	}
	if c.Observers.Notices == nil {
		c.Observers.Notices = func() []Notice { return nil }
	}
	if c.Offer == nil {
		c.Offer = func() (synchronised, behind bool) { return true, false }
	}
	if c.OnDetach == nil {
		c.OnDetach = func(string) {}
	}
}

func orDefault[T ~int | ~int64](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Server is a gateway's end of the health streams of its node proxies.
// It is safe for concurrent use.
type Server struct {
	cfg       ServerConfig
	topics    *topics
	observers *observers
	rare      logging.PeerLimits  // of lines that are logged once per hour, by peer
	lines     *logging.PeerLimits // of lines that a peer can trigger, by peer

	mu      sync.Mutex
	book    *book
	streams map[*life]*attachment
	left    []string // nodes that OnDetach is to be told of, each once
	telling bool     // somebody runs the hooks
}

// NewServer returns a server without streams.
func NewServer(cfg ServerConfig) *Server {
	cfg.setDefaults()
	return &Server{
		cfg: cfg, topics: newTopics(cfg.Source), observers: newObservers(cfg.Observers, cfg.Network, cfg.Source), rare: logging.PeerLimits{Every: time.Hour, Log: &cfg.Log}, lines: logging.ByPeer(cfg.Log),
		book: newBook(cfg.Place), streams: map[*life]*attachment{},
	}
}

// Run lets time pass until ctx ends: what a node proxy that has gone last said
// expires.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.change(func(now time.Time) { s.book.advance(now) })
			held := s.cfg.Holds()
			s.topics.hold(held)
			s.observers.topics.hold(held)
			s.observers.notify(s.wrong())
			s.endUnproven(time.Now())
			s.offer()
		}
	}
}

// endUnproven ends streams whose proof is worth nothing any more: their node proxies
// attach again, with what proves them then.
func (s *Server) endUnproven(now time.Time) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.streams))
	s.mu.Unlock()
	for _, a := range all {
		if err := a.proof.check(now); err != nil {
			s.lines.Sample(s.cfg.Log.Info(), a.life.node, "unproven").Err(err).Str("node", a.life.node).Stringer("peer", a.peer).Msg("health stream ended: the node has to prove itself again")
			a.end()
		}
	}
}

// Proven is by what an attached instance has proved its node.
type Proven struct {
	Node     string    `json:"node"`           // node of the node proxy
	Instance Instance  `json:"instance"`       // instance of the node proxy
	How      string    `json:"how"`            // certificate (names the node), review (the API server reviewed its token) or keys (a key of the API server, which was unavailable, signed its token)
	Until    time.Time `json:"until,omitzero"` // when a new proof is due; absent if that is when its certificate expires
}

// Proven returns by what those that are attached have proved their nodes, sorted.
func (s *Server) Proven() []Proven {
	out := []Proven{}
	s.mu.Lock()
	for l, a := range s.streams {
		out = append(out, Proven{l.node, l.instance, a.proof.How, a.proof.Expires})
	}
	s.mu.Unlock()
	slices.SortFunc(out, func(a, b Proven) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), bytes.Compare(a.Instance[:], b.Instance[:]))
	})
	return out
}

// Relocate follows a change of discovery. OnEdge receives again the ejected ports of endpoints
// for which changed returns true: those whose pod, or a service of it, is new or different.
// changed must not call s.
func (s *Server) Relocate(changed func(mesh.EndpointID) bool) {
	s.change(func(now time.Time) {
		for _, node := range s.book.relocate(changed, now) {
			s.askFor(node)
		}
	})
}

// askFor asks the attached instances of a node's proxy for what is open; the caller
// holds mu.
func (s *Server) askFor(node string) {
	if s.book.attached(node) == 0 {
		return
	}
	for _, x := range s.book.nodes[node].lives {
		if a := s.streams[x]; a != nil {
			a.down.ask(s.book.open(x))
		}
	}
	s.book.asked(node)
}

// Changed tells whoever follows services that the source's answers have changed.
func (s *Server) Changed(services ...string) { s.topics.changed(services) }

// ChangedAll is Changed for every service that somebody follows.
func (s *Server) ChangedAll() { s.topics.changedAll() }

// Exported tells whoever observes that what other networks export of services may have
// changed.
func (s *Server) Exported(services ...string) { s.observers.exported(services) }

// ExportedAll is Exported for everything.
func (s *Server) ExportedAll() { s.observers.exportedAll() }

// Endpoint returns what is believed of a port of an endpoint of this network, and
// how old the evidence is.
func (s *Server) Endpoint(network string, id mesh.EndpointID, port uint16) (federation.EndpointFact, time.Duration, bool) {
	if network != s.cfg.Network {
		return federation.EndpointFact{}, 0, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.book.believed[Target{id, port}]
	return b.fact.EndpointFact, time.Since(b.seen), ok
}

// Nodes returns the names of the attached nodes, sorted.
func (s *Server) Nodes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.names()
}

// Heard returns the names of those that have said all that they know of their pods since
// they attached first, sorted.
func (s *Server) Heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.book.heard()
}

// Word is what an instance of a node proxy has said of a port, in a form for JSON.
type Word struct {
	Node     string                  `json:"node"`     // node of the node proxy that reported
	Instance Instance                `json:"instance"` // instance of the node proxy
	Attached bool                    `json:"attached"` // its health stream is open; otherwise the report is kept until another instance reports
	Draining bool                    `json:"draining"` // another instance is taking over
	Believed bool                    `json:"believed"` // the report is in use
	AgeMS    int64                   `json:"ageMs"`    // age of the observation
	Fact     federation.EndpointFact `json:"fact"`     // the report
}

// Words returns all that node proxies have said, sorted by node, endpoint and port.
func (s *Server) Words() []Word {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []Word{}
	for _, name := range s.book.known() {
		for _, l := range s.book.nodes[name].lives {
			for t, f := range l.facts {
				b, ok := s.book.believed[t]
				out = append(out, Word{Node: name, Instance: l.instance, Attached: l.attached, Draining: l.draining,
					Believed: ok && b.order == f.order, AgeMS: max(0, time.Since(f.seen).Milliseconds()), Fact: f.fact.EndpointFact})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Word) int {
		if a.Node != b.Node {
			return 0
		}
		return compareTargets(Target{a.Fact.Endpoint, a.Fact.Port}, Target{b.Fact.Endpoint, b.Fact.Port})
	})
	return out
}

// change runs f with mu held and tells the hooks what came of it.
func (s *Server) change(f func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(time.Now())
	s.tell()
}

// tell runs the hooks, one call at a time and without mu; the caller holds mu. If
// somebody else does so already, they do this too: what waits for them is one edge for
// each port at most, in its last state, and each node once.
func (s *Server) tell() {
	if s.telling {
		return
	}
	s.telling = true
	for {
		edges, left := s.book.take(), s.left
		if len(edges)+len(left) == 0 {
			break
		}
		s.left = nil
		s.mu.Unlock()
		if len(edges) > 0 {
			s.cfg.OnEdge(edges)
		}
		for _, node := range left {
			s.cfg.OnDetach(node)
		}
		s.mu.Lock()
	}
	s.telling = false
}

// Admit says whether the holder of an identity may attach at all.
func (s *Server) Admit(peer spiffeid.ID) error {
	if s.observers.admit(peer) == nil {
		return nil
	}
	return s.cfg.Prover.Admit(peer)
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
		s.lines.Sample(s.cfg.Log.Debug(), id.String(), "ended").Err(err).Str("node", node).Stringer("peer", id).Msg("health stream ended")
		return
	}
	s.cfg.Metrics.Rejected.WithLabelValues(reason).Inc()
	s.rare.Sample(s.cfg.Log.Warn(), id.String(), reason).Err(err).Str("node", node).Stringer("peer", id).Str("reason", reason).Msg("health stream refused")
}
