package names

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/internal/accept"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/memory"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const (
	// minOutstanding and maxOutstanding bound how many queries of a pod are pending at once;
	// between them it is as many as a quarter of the process's memory budget holds. One more
	// is answered with SERVFAIL: a client without an answer waits for seconds and tries again.
	// A pending query ends with the resolver's timeout, 5 s by default, so 450 queries a second
	// to a server that is silent are 2 025.
	minOutstanding = 256
	// freeQueries of a pod may be pending whatever memory is left.
	freeQueries    = 16
	maxOutstanding = 4096
	// queryMemory is what a pending query takes: goroutines and a socket (measured 2026-11).
	queryMemory = 16 << 10
	// maxConns is how many TCP connections of a pod there are at once.
	maxConns = 64
	// tcpIdle ends a TCP connection on which nothing was asked for so long, as ztunnel's does.
	tcpIdle = 5 * time.Second
	// askLimit is how long gateways have for their word on a name.
	askLimit = 2 * time.Second
	// contestLimit is how long the cluster's DNS has for its word on a name that is known here: after that
	// what is known here is the answer.
	contestLimit = 2 * time.Second
)

// Config is what a Server is made of. Its functions are called by many goroutines at once.
type Config struct {
	// Snapshot returns what is known of the mesh now.
	Snapshot func() *mesh.Snapshot
	// Ask waits until gateways have said what they know of a service's name, in lower case, that the
	// snapshot does not have with an address, and reports whether they have. Nil: the snapshot is all there is.
	Ask func(ctx context.Context, host string) (sure bool)
	// Used is told of each name that is answered; it must not wait. May be nil.
	Used func(host string)
	// Resolver returns what the pod's resolv.conf says now.
	Resolver func() Resolver
	// Domain is the domain of the cluster's own names, such as k8s.example, in lower case; empty:
	// that of the pod's search list.
	Domain string
	// Dial opens a socket to a server, in the pod's namespace; what it opens must not be
	// captured again. Network is udp or tcp.
	Dial func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)
	// NoIPv4 and NoIPv6 leave out the addresses of a family that the pod has no address of: its connections
	// there fail, and a client may try them first.
	NoIPv4, NoIPv6 bool
	Metrics        *Metrics
	Log            zerolog.Logger
	// Memory is what pending queries are charged to, as those of Owner, an identity. Nil: no bound.
	Memory *memory.Budget
	Owner  func() string
}

func (c Config) reachable(list []netip.Addr) []netip.Addr {
	if !c.NoIPv4 && !c.NoIPv6 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool {
		four := a.Unmap().Is4()
		return four && c.NoIPv4 || !four && c.NoIPv6
	})
}

// Server answers the queries of one pod. Several sockets may be served at once.
type Server struct {
	cfg   Config
	up    upstream
	lines *logging.PeerLimits // of the pod, by kind of line
	slots chan struct{}       // one for each pending query
	conns chan struct{}       // one for each TCP connection
}

// New returns a Server; it opens nothing.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, slots: make(chan struct{}, outstanding(cfg.Memory)), conns: make(chan struct{}, maxConns), lines: logging.ByPeer(cfg.Log)}
	s.up.dial = cfg.Dial
	s.up.failed = func(server netip.AddrPort, err error) {
		cfg.Metrics.upstreamFailures.Inc()
		s.lines.Sample(cfg.Log.Debug(), "", "server").Stringer("server", server).Err(err).Msg("DNS server of a pod does not answer")
	}
	return s
}

// ServeUDP answers the datagrams of conn until ctx ends or conn is closed, and closes it. Once a read deadline of
// conn has passed it reads no more, and returns when what was asked is answered. When it returns nothing
// that it began goes on. It returns nil after ctx has ended, or the deadline has passed.
func (s *Server) ServeUDP(ctx context.Context, conn net.PacketConn) error {
	ctx, cancel := context.WithCancel(ctx)
	var begun sync.WaitGroup
	defer begun.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	buf := make([]byte, 65535)
	var failures accept.Failures
	for {
		n, from, err := conn.ReadFrom(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			begun.Wait()
			return nil
		case err != nil && !s.goesOn(ctx, &failures, err):
			return err
		case err != nil:
			continue
		}
		failures.Succeeded()
		q, reply, later := s.atOnce(buf[:n], true)
		if !later {
			if reply != nil {
				conn.WriteTo(reply, from)
			}
			continue
		}
		q = copied(q)
		begun.Go(func() {
			defer s.free(&q)
			if reply := s.wait(ctx, &q, "udp", sizeFor(&q)); reply != nil {
				conn.WriteTo(reply, from)
			}
		})
	}
}

// goesOn reports whether a socket that has failed with err is used again, after a pause: it is while it is
// open, as what lacks comes back and the pod has no other.
func (s *Server) goesOn(ctx context.Context, f *accept.Failures, err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(f.Failed(s.cfg.Log, err, time.Now())):
	}
	return true
}

// copied returns q in memory of its own.
func copied(q query) query {
	n := len(q.question)
	q.raw = append([]byte(nil), q.raw...)
	if n > 0 {
		q.question = q.raw[headerSize : headerSize+n]
	}
	return q
}

// atOnce reads a message, and answers it if that needs nobody else; later means that the caller is to
// call wait with q, and free then.
func (s *Server) atOnce(raw []byte, udp bool) (q query, reply []byte, later bool) {
	q, err := readQuery(raw)
	switch err {
	case nil:
	case errShort, errReply:
		s.count(dropped)
		return q, nil, false
	default:
		s.count(malformed)
		return q, bare(raw, dns.RcodeFormatError), false
	}
	size := dns.MaxMsgSize
	if udp {
		size = sizeFor(&q)
	}
	if j, snap := s.judge(&q, unasked); j.do == answer {
		return q, s.answer(&q, j, snap, size), false
	}
	if !s.take(&q) {
		s.count(busy)
		return q, failed(&q, dns.ExtendedErrorCodeOther, "too many queries of this pod wait", size), false
	}
	return q, nil, true
}

// outstanding is how many queries of a pod may be pending at once.
func outstanding(b *memory.Budget) int {
	if b == nil {
		return maxOutstanding
	}
	return int(min(maxOutstanding, max(minOutstanding, b.Size()/4/queryMemory)))
}

// take takes a place and memory for q until free; false if there is none. The first
// freeQueries of a pod need no more than a place. Further ones get memory while half of
// the budget is free: queries make no stream lose its memory.
func (s *Server) take(q *query) bool {
	select {
	case s.slots <- struct{}{}:
	default:
		return false
	}
	if s.cfg.Memory == nil {
		return true
	}
	q.use = s.cfg.Memory.Open(s.cfg.Owner(), memory.Other, nil)
	if len(s.slots) <= freeQueries {
		q.use.Add(queryMemory)
		return true
	}
	if !q.use.TryReserve(queryMemory) {
		s.free(q)
		return false
	}
	return true
}

// free gives back what take took.
func (s *Server) free(q *query) {
	q.use.Close()
	<-s.slots
}

// judge says what becomes of q by what is known now. What no name of the mesh could be asked by goes
// to the pod's resolver.
func (s *Server) judge(q *query, asked state) (judgement, *mesh.Snapshot) {
	snap := s.cfg.Snapshot()
	if len(q.question) == 0 || q.class != dns.ClassINET {
		return judgement{do: pass}, snap
	}
	if s.cfg.Ask == nil && asked == unasked {
		asked = sure
	}
	return s.view(snap).judge(q.lower, q.kind, asked), snap
}

// wait answers what others have to be asked for.
func (s *Server) wait(ctx context.Context, q *query, network string, size int) []byte {
	j, snap := s.judge(q, unasked)
	if j.do == ask {
		j, snap = s.judge(q, s.ask(ctx, j.host))
	}
	switch j.do {
	case answer:
		return s.answer(q, j, snap, size)
	case contest:
		return s.contest(ctx, q, j.host, network, size)
	}
	reply, err := s.exchange(ctx, network, q)
	return s.passOn(q, reply, err, size)
}

// ask asks gateways for a name.
func (s *Server) ask(ctx context.Context, host string) state {
	if s.cfg.Ask == nil {
		return sure
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if s.cfg.Ask(ctx, host) {
		return sure
	}
	return unsure
}

// contest asks the cluster's DNS for a name of its own, and answers from the mesh what it denies.
func (s *Server) contest(ctx context.Context, q *query, host, network string, size int) []byte {
	limited := ctx
	if j, _ := s.denied(q, sure); j.do == answer {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, contestLimit)
		defer cancel()
	}
	reply, err := s.exchange(limited, network, q)
	if err == nil && !denies(reply) && !refuses(reply) {
		return s.passOn(q, reply, nil, size)
	}
	j, snap := s.denied(q, unasked)
	if j.do == ask && err == nil && denies(reply) {
		j, snap = s.denied(q, s.ask(ctx, host))
	}
	if j.do == answer {
		return s.answer(q, j, snap, size)
	}
	return s.passOn(q, reply, err, size)
}

func (s *Server) denied(q *query, asked state) (judgement, *mesh.Snapshot) {
	snap := s.cfg.Snapshot()
	if s.cfg.Ask == nil {
		asked = sure
	}
	return s.view(snap).denied(q.lower, asked), snap
}

func (s *Server) view(snap *mesh.Snapshot) view {
	search := s.cfg.Resolver().Search
	return view{snap, search, cmp.Or(s.cfg.Domain, ClusterDomain(search))}
}

// answer writes what is answered here.
func (s *Server) answer(q *query, j judgement, snap *mesh.Snapshot, size int) []byte {
	result := found
	switch {
	case j.rcode == dns.RcodeNameError:
		result = nameError
	case j.rcode != dns.RcodeSuccess:
		result = unknown
	case s.cfg.Used != nil && len(j.entry.addresses) > 0:
		s.cfg.Used(j.host)
	}
	j.entry.addresses = s.cfg.reachable(j.entry.addresses)
	reply := replyTo(q, j, serialOf(snap), size)
	if result == found && binary.BigEndian.Uint16(reply[6:]) == 0 && reply[2]&2 == 0 {
		result = noData
	}
	s.count(result)
	s.log(q, result)
	return reply
}

// passOn is the reply of a server as it came, or says that there is none.
func (s *Server) passOn(q *query, reply []byte, err error, size int) []byte {
	if err == nil {
		s.count(passed)
		return reply
	}
	s.count(unanswered)
	s.lines.Sample(s.cfg.Log.Debug(), "", "unanswered").Str("name", q.name).Err(err).Msg("DNS query of a pod not answered")
	return failed(q, dns.ExtendedErrorCodeNetworkError, err.Error(), size)
}

func (s *Server) exchange(ctx context.Context, network string, q *query) ([]byte, error) {
	began := time.Now()
	s.cfg.Metrics.upstreamRequests.Inc()
	reply, err := s.up.exchange(ctx, network, q, s.cfg.Resolver())
	if err == nil {
		s.cfg.Metrics.upstreamDuration.Observe(time.Since(began).Seconds())
	}
	return reply, err
}

func (s *Server) count(r result) { s.cfg.Metrics.requests[r].Inc() }

func (s *Server) log(q *query, r result) {
	s.lines.Sample(s.cfg.Log.Debug(), "", results[r]).Str("name", q.name).Str("type", dns.TypeToString[q.kind]).Str("result", results[r]).Msg("DNS query of a pod answered")
}
