package healthstream

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// attachment is the stream of one instance.
type attachment struct {
	peer spiffeid.ID
	life *life
	down *downlink
	end  context.CancelFunc
	// proof is what its node was proven by.
	proof Proof
}

// Accept serves the stream on conn, whose other end has proved to be id. It
// returns when the stream has ended, which ctx also does, and closes conn.
func (s *Server) Accept(ctx context.Context, conn net.Conn, id spiffeid.ID) {
	defer link.CloseAbruptly(conn)
	stream, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(stream, func() { link.CloseAbruptly(conn) })
	defer stop()
	bufferLittle(conn)
	c := &frames{conn: conn, dead: s.cfg.Dead, metrics: s.cfg.Metrics}
	hello, proof, err := s.greet(stream, c, id)
	if err != nil {
		explain(c, hello, err)
		s.refused(id, "", err)
		return
	}
	if hello.GetObserve() {
		s.serveObserver(ctx, stream, c, id)
		return
	}
	a := &attachment{peer: id, end: cancel, down: newDownlink(s.topics, s.cfg.MaxServices), proof: proof}
	a.down.excerpts.index, a.down.excerpts.node = s.cfg.Excerpts, hello.GetNode()
	defer a.down.close()
	s.offer()
	a.down.nudge() // the offer is made at once, also if it is what others were told before
	welcome, err := s.attach(hello, a)
	if err != nil {
		explain(c, hello, err)
		s.refused(id, hello.GetNode(), err)
		return
	}
	defer s.detach(a)
	err = s.serve(stream, c, a, welcome)
	if ctx.Err() == nil {
		s.refused(id, hello.GetNode(), err)
	}
}

// greet reads the Attach and decides whether its node may attach. With an error it returns
// the Attach if that could be read.
func (s *Server) greet(ctx context.Context, c *frames, id spiffeid.ID) (*pb.Attach, Proof, error) {
	m, err := c.read()
	if err != nil {
		return nil, Proof{}, err
	}
	hello := m.GetAttach()
	switch {
	case hello == nil:
		return nil, Proof{}, malformed("the first message must be an attach")
	case hello.GetNode() == "" || len(hello.GetNode()) > federation.MaxName:
		return nil, Proof{}, malformed("the attach must name its node in 1 to %d bytes", federation.MaxName)
	case len(hello.GetInstance()) != len(Instance{}):
		return nil, Proof{}, malformed("instance of %d bytes: want %d", len(hello.GetInstance()), len(Instance{}))
	case hello.GetNetwork() != s.cfg.Network:
		return hello, Proof{}, &federation.ForeignError{Signer: id, Origin: hello.GetNode(), Subject: fmt.Sprintf("network %.80q", hello.GetNetwork()),
			Reason: fmt.Sprintf("this is a gateway of network %q", s.cfg.Network)}
	}
	if hello.GetObserve() {
		return hello, Proof{}, nil // what it may, observe says
	}
	if err := s.cfg.Prover.Admit(id); err != nil { // one who may observe is no node proxy
		return hello, Proof{}, &peer.IdentityError{Cause: err}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Dead)
	defer cancel()
	proof, err := s.cfg.Prover.Prove(ctx, id, Claim{Network: hello.GetNetwork(), Node: hello.GetNode(), Token: hello.GetToken(), From: c.conn.RemoteAddr()})
	if err != nil {
		return hello, Proof{}, &peer.IdentityError{Cause: err}
	}
	return hello, proof, nil
}

// attach registers the stream of an instance. Its older stream, if it still has
// one, is ended.
func (s *Server) attach(hello *pb.Attach, a *attachment) (*pb.Welcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= s.cfg.MaxNodes && !s.book.displaces(hello.GetNode(), Instance(hello.GetInstance())) {
		return nil, fmt.Errorf("node %q: %d streams are attached, the limit: %w", hello.GetNode(), len(s.streams), peer.ErrFull)
	}
	l, resumed, evicted := s.book.attach(hello.GetNode(), Instance(hello.GetInstance()), time.Now())
	for _, old := range []*life{l, evicted} {
		if x := s.streams[old]; x != nil {
			delete(s.streams, old)
			x.end()
		}
	}
	a.life = l
	s.streams[l] = a
	s.cfg.Metrics.Attached.Set(float64(len(s.streams)))
	s.lines.Sample(s.cfg.Log.Info(), l.node, "attached").Str("node", l.node).Stringer("node_instance", l.instance).Bool("resumed", resumed).Str("proven_by", a.proof.How).Msg("node attached")
	out := s.book.open(l)
	s.book.asked(l.node)
	s.tell()
	return &pb.Welcome{
		Gateway: s.cfg.Name, Out: targetsToWire(out), Resumed: resumed,
		SpreadMs: uint32((time.Duration(len(s.streams)) * s.cfg.SpreadPerNode).Milliseconds()),
	}, nil
}

// detach ends what attach began, unless another stream of that instance has.
func (s *Server) detach(a *attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[a.life] != a {
		return
	}
	delete(s.streams, a.life)
	s.cfg.Metrics.Attached.Set(float64(len(s.streams)))
	s.lines.Sample(s.cfg.Log.Info(), a.life.node, "detached").Str("node", a.life.node).Stringer("node_instance", a.life.instance).Msg("node detached")
	s.book.detach(a.life, time.Now())
	if s.book.attached(a.life.node) == 0 && !slices.Contains(s.left, a.life.node) {
		s.left = append(s.left, a.life.node)
	}
	s.askFor(a.life.node) // what it said is theirs to say now
	s.tell()
}

// serve reads reports here and pushes from a second goroutine, which it waits for.
func (s *Server) serve(ctx context.Context, c *frames, a *attachment, welcome *pb.Welcome) error {
	if err := c.write(&pb.StreamMessage{Message: &pb.StreamMessage_Welcome{Welcome: welcome}}); err != nil {
		return fmt.Errorf("write welcome: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var pushing sync.WaitGroup
	pushing.Go(func() {
		if err := push(ctx, c, a.down, s.cfg.Settled); err != nil {
			cancel(fmt.Errorf("write to node: %w", err))
			link.CloseAbruptly(c.conn)
		}
	})
	cancel(s.listen(c, a))
	link.CloseAbruptly(c.conn)
	pushing.Wait()
	return context.Cause(ctx)
}

// push writes what is due until ctx ends; what is known of the health of services when
// settled is closed, or nil. A node proxy that reads slowly gets
// fewer, later messages; one that does not read at all is cut off by the deadline.
//
// Discovery may be megabytes, and an edge of health is not to wait for it: what else is due goes
// before each message of it, of about [chunkBytes] each. So an edge waits for what is known of the health of services that have just
// been followed, one such message, and what is on its way already, at most [sendBuffer].
func push(ctx context.Context, c *frames, d *downlink, settled <-chan struct{}) error {
	urgent := func() error {
		asks, beats := d.owed()
		if len(asks) > 0 {
			if err := c.write(ask(asks)); err != nil {
				return err
			}
		}
		if beats {
			if err := c.write(beat()); err != nil {
				return err
			}
		}
		if list := d.unsaid(); list != nil {
			if err := c.write(noticesToWire(*list)); err != nil {
				return err
			}
		}
		select {
		case <-settled: // never, if it is nil
			settled = nil
		default:
		}
		if settled != nil {
			return nil
		}
		return d.drain(c.writeBody)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.signal:
		case <-settled:
			settled = nil
		}
		if err := urgent(); err != nil {
			return err
		}
		if err := d.drainExcerpts(c.write, urgent); err != nil {
			return err
		}
	}
}

// sendBuffer is how many bytes the kernel takes of a stream before the node proxy has received
// them, as far as it heeds that (Linux doubles it).
const sendBuffer = 128 << 10

// bufferLittle makes what is written to conn wait here, where something more urgent may go first, and not in
// the kernel.
func bufferLittle(conn net.Conn) {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn()
	}
	if c, ok := conn.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = c.SetWriteBuffer(sendBuffer) // without, it is as the kernel likes it
	}
}

// listen reads what a node proxy says until the stream ends.
func (s *Server) listen(c *frames, a *attachment) error {
	for {
		m, err := c.read()
		if err != nil {
			return err
		}
		switch x := m.GetMessage().(type) {
		case *pb.StreamMessage_Report:
			err = s.report(a, x.Report)
		case *pb.StreamMessage_Subscribe:
			err = s.subscribe(a, x.Subscribe)
		case *pb.StreamMessage_Lead:
			a.down.lead(x.Lead.GetOn())
		case *pb.StreamMessage_Beat:
			a.down.beat()
		}
		if err != nil {
			return err
		}
	}
}

// report takes what a node proxy says of the pods of its node.
func (s *Server) report(a *attachment, m *pb.Report) error {
	facts, err := factsFromWire(m.GetPorts())
	if err != nil {
		return err
	}
	forgotten, err := targetsFromWire(m.GetForgotten())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[a.life] != a {
		return nil // another stream of this instance is attached now
	}
	if m.GetDraining() {
		s.book.drain(a.life)
	}
	elsewhere, full := s.book.report(a.life, facts, m.GetWhole(), time.Now())
	s.book.nothing(a.life, forgotten)
	s.cfg.Metrics.Rejected.WithLabelValues("full").Add(float64(full))
	if len(elsewhere) > 0 {
		s.elsewhere(a, elsewhere)
	}
	s.tell()
	return nil
}

// elsewhere counts and logs that a node has reported pods that discovery does not
// place on it.
func (s *Server) elsewhere(a *attachment, targets []Target) {
	s.cfg.Metrics.Rejected.WithLabelValues(peer.ReasonOtherNode).Add(float64(len(targets)))
	s.rare.Sample(s.cfg.Log.Warn(), a.peer.String(), peer.ReasonOtherNode).Str("node", a.life.node).Stringer("peer", a.peer).Stringer("endpoint", targets[0].Endpoint).Int("targets", len(targets)).
		Str("reason", peer.ReasonOtherNode).Msg("report of a pod that discovery does not place on its node rejected")
}

// subscribe changes what a node proxy follows.
func (s *Server) subscribe(a *attachment, m *pb.Subscribe) error {
	if err := checkNames(slices.Concat(m.GetAdd(), m.GetRemove())); err != nil {
		return err
	}
	if beyond := a.down.subscribe(m.GetAdd(), m.GetRemove()); beyond > 0 {
		s.cfg.Metrics.Rejected.WithLabelValues("full").Add(float64(beyond))
		s.rare.Sample(s.cfg.Log.Warn(), a.peer.String(), "services").Str("node", a.life.node).Stringer("peer", a.peer).Int("limit", s.cfg.MaxServices).Int("beyond", beyond).
			Msg("node proxy follows too many services: it is not told of the others")
	}
	return nil
}
