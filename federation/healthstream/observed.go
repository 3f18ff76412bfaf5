package healthstream

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation"
	pb "github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// Observers is who may follow all that other networks export, and where that is. The
// zero value lets nobody.
type Observers struct {
	// Admit says whether the holder of an identity may observe. It must not wait. Nil
	// lets nobody.
	Admit func(peer spiffeid.ID) error
	// Offered returns the services that other networks export, in any order. Call
	// [Server.Exported] when it changes, or what they say of one. It must not wait.
	Offered func() []string
	// Notices returns what is wrong here, which observers are told of. It is asked every second, and
	// must not wait. Nil is nothing.
	Notices func() []Notice
}

const (
	// maxObservers is how many observe at once: two replicas, and two that take over.
	maxObservers = 8
	// MaxObserved is how many services an observer is told of: those of ten networks of
	// 2 000 each.
	MaxObserved = 20_000
)

// observers is the streams that follow everything. What they are told of a service is
// its exports alone, so that health, which changes far more often, costs them nothing.
type observers struct {
	cfg    Observers
	topics *topics

	mu      sync.Mutex
	streams map[*observer]struct{}
	notices []Notice // that stand
}

func newObservers(cfg Observers, network string, s Source) *observers {
	return &observers{cfg: cfg, topics: newTopics(exportsOnly{s, network}), streams: map[*observer]struct{}{}}
}

// observer is one of these streams.
type observer struct {
	down *downlink
	mu   sync.Mutex // one goroutine at a time changes what it follows
}

// follow changes what o is told of. What is asked for again is told whole.
func (o *observer) follow(add, remove []string) (beyond int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.down.subscribe(add, remove)
}

// join makes o follow what it has not heard of yet, as far as somebody exports it.
func (o *observer) join(services []string) (beyond int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.down.subscribe(slices.DeleteFunc(slices.Clone(services), func(s string) bool {
		return o.down.isFollowed(s) || len(o.down.topics.source.Shares(s)) == 0
	}), nil)
}

// exportsOnly is a Source of what other networks than its own export, without health.
type exportsOnly struct {
	Source
	own string
}

// Shares implements [Source].
func (e exportsOnly) Shares(service string) []Share {
	all := e.Source.Shares(service)
	out := make([]Share, 0, len(all))
	for _, s := range all {
		if s.Network == e.own {
			continue
		}
		voices := make([]Voice, 0, len(s.Instances))
		for _, v := range s.Instances {
			v.Entries = slices.DeleteFunc(slices.Clone(v.Entries), func(e record.Entry) bool {
				k, err := record.DecodeKey(e.Key)
				return err != nil || k.Kind != record.KindExport
			})
			if len(v.Entries) > 0 {
				voices = append(voices, v)
			}
		}
		if len(voices) > 0 {
			out = append(out, Share{Network: s.Network, Instances: voices})
		}
	}
	return out
}

// exported tells who observes that something else is exported than before.
func (x *observers) exported(services []string) {
	x.topics.changed(services)
	for _, o := range x.all() {
		o.join(services)
	}
}

// exportedAll is exported for everything.
func (x *observers) exportedAll() {
	streams := x.all()
	if len(streams) == 0 {
		return
	}
	x.topics.changedAll()
	offered := x.cfg.Offered()
	for _, o := range streams {
		o.join(offered)
	}
}

func (x *observers) all() []*observer {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]*observer, 0, len(x.streams))
	for o := range x.streams {
		out = append(out, o)
	}
	return out
}

func (x *observers) add(o *observer) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.streams) >= maxObservers {
		return false
	}
	x.streams[o] = struct{}{}
	if len(x.notices) > 0 {
		o.down.notify(x.notices)
	}
	return true
}

func (x *observers) remove(o *observer) {
	x.mu.Lock()
	delete(x.streams, o)
	x.mu.Unlock()
	o.down.close()
}

// admit says whether id may observe.
func (x *observers) admit(id spiffeid.ID) error {
	if x.cfg.Admit == nil {
		return fmt.Errorf("identity %s may not observe: nobody may here", id)
	}
	return x.cfg.Admit(id)
}

// observe serves a stream that observes, whose Attach has been read, until it ends. It
// tells nothing before it has heard what the other end knows: of these it says at once
// what there is no more.
func (s *Server) observe(ctx context.Context, c *frames, id spiffeid.ID) error {
	if err := s.observers.admit(id); err != nil {
		return &peer.IdentityError{Cause: err}
	}
	o := &observer{down: newDownlink(s.observers.topics, MaxObserved)}
	if !s.observers.add(o) {
		o.down.close()
		return fmt.Errorf("%d streams observe, the limit: %w", maxObservers, peer.ErrFull)
	}
	defer s.observers.remove(o)
	if err := c.write(&pb.StreamMessage{Message: &pb.StreamMessage_Welcome{Welcome: &pb.Welcome{Gateway: s.cfg.Name}}}); err != nil {
		return fmt.Errorf("write welcome: %w", err)
	}
	s.lines.Sample(s.cfg.Log.Info(), id.String(), "attached").Stringer("peer", id).Msg("observer attached")
	ctx, cancel := context.WithCancelCause(ctx)
	var pushing sync.WaitGroup
	cancel(s.hear(ctx, c, o, func() {
		pushing.Go(func() {
			if err := push(ctx, c, o.down, s.cfg.Settled); err != nil {
				cancel(fmt.Errorf("write to observer: %w", err))
				link.CloseAbruptly(c.conn)
			}
		})
	}))
	link.CloseAbruptly(c.conn)
	pushing.Wait()
	return context.Cause(ctx)
}

// hear reads what an observer says until its stream ends. begin is called once, when it
// has said what it knows.
func (s *Server) hear(ctx context.Context, c *frames, o *observer, begin func()) error {
	for begun := false; ; {
		m, err := c.read()
		if err != nil {
			return err
		}
		switch x := m.GetMessage().(type) {
		case *pb.StreamMessage_Subscribe:
			if err := checkNames(slices.Concat(x.Subscribe.GetAdd(), x.Subscribe.GetRemove())); err != nil {
				return err
			}
			beyond := o.follow(x.Subscribe.GetAdd(), x.Subscribe.GetRemove())
			if last := len(x.Subscribe.GetAdd()) < subscribeChunk; last && !begun {
				begun = true
				beyond += o.join(s.observers.cfg.Offered())
				begin()
			} else { // what was forgotten there while it was exported anew here is told again
				beyond += o.join(x.Subscribe.GetRemove())
			}
			if beyond > 0 {
				s.cfg.Metrics.Rejected.WithLabelValues("full").Add(float64(beyond))
				s.rare.Sample(s.cfg.Log.Warn(), "", "observed").Int("limit", MaxObserved).Int("beyond", beyond).Msg("more services are exported than an observer is told of")
			}
		case *pb.StreamMessage_Report:
			return malformed("an observer says nothing of pods")
		case *pb.StreamMessage_Beat:
			o.down.beat()
		}
	}
}

// checkNames returns what is wrong with names of services.
func checkNames(names []string) error {
	for _, name := range names {
		if name == "" || len(name) > federation.MaxName {
			return malformed("service name of %d bytes: want 1 to %d", len(name), federation.MaxName)
		}
	}
	return nil
}

// subscribeChunk is how many services one message begins to follow. A message with fewer
// is the last one.
const subscribeChunk = 2000

// serveObserver runs observe, and notes why it ended.
func (s *Server) serveObserver(ctx, stream context.Context, c *frames, id spiffeid.ID) {
	if err := s.observe(stream, c, id); ctx.Err() == nil {
		s.refused(id, "observer", err)
	}
}
