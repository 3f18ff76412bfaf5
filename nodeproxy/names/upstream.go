package names

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	// stepLimit is how long one server has before the next one is asked as well. It goes on to be
	// listened to.
	stepLimit = time.Second
	// slowFor is how long a server that did not answer in time is asked after the others: one
	// that is gone costs its time once, and not each query.
	slowFor = 10 * time.Second
	// transferLimit is how long a transfer of a zone may take.
	transferLimit = time.Minute
)

// errNoServer is the failure of a pod without servers.
var errNoServer = errors.New("the pod's resolv.conf names no server")

// upstream asks the servers of a pod. Safe for concurrent use.
type upstream struct {
	dial   func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error)
	turn   atomic.Uint32
	mu     sync.Mutex
	slow   map[netip.AddrPort]time.Time // until when; of servers of the last resolv.conf, and few others
	failed func(server netip.AddrPort, err error)
}

// outcome is what came of one server.
type outcome struct {
	server netip.AddrPort
	reply  []byte
	err    error
}

// exchange asks the servers of r one after the other until one answers; those that only say that they
// cannot are passed over, as clients do who know all of them. The reply is as the server sent it.
// It takes as long as the client waits for one server, at most.
func (u *upstream) exchange(ctx context.Context, network string, q *query, r Resolver) ([]byte, error) {
	servers := u.order(r)
	if len(servers) == 0 {
		return nil, errNoServer
	}
	limit := r.Timeout - r.Timeout/10 // so that the client hears it
	ctx, cancel := context.WithTimeout(ctx, limit)
	outcomes, pending := make(chan outcome, len(servers)), 0
	defer func() {
		cancel()
		for ; pending > 0; pending-- {
			<-outcomes
		}
	}()
	step := min(stepLimit, limit/time.Duration(len(servers)))
	late := time.NewTimer(step)
	defer late.Stop()
	var last netip.AddrPort
	next := func() {
		if len(servers) == 0 {
			return
		}
		last, servers = servers[0], servers[1:]
		pending++
		late.Reset(step)
		go func(server netip.AddrPort) {
			b, err := u.ask(ctx, network, q, server)
			outcomes <- outcome{server, b, err}
		}(last)
	}
	next()
	var refusal []byte // the first
	var failure error  // likewise
	for pending > 0 {
		select {
		case o := <-outcomes:
			pending--
			switch {
			case o.err != nil:
				if u.mark(o.server, true); ctx.Err() == nil {
					u.failed(o.server, o.err)
				}
				if failure == nil {
					failure = fmt.Errorf("%v: %w", o.server, o.err)
				}
			case refuses(o.reply):
				if refusal == nil {
					refusal = o.reply
				}
			default:
				u.mark(o.server, false)
				return o.reply, nil
			}
			next()
		case <-late.C:
			u.mark(last, true)
			next()
		}
	}
	if refusal != nil {
		return refusal, nil
	}
	return nil, failure
}

// refuses reports whether a reply says nothing of the name: another server may.
func refuses(reply []byte) bool {
	switch rcode(reply) {
	case dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeRefused:
		return true
	}
	return false
}

// order returns the servers in the order in which they are asked.
func (u *upstream) order(r Resolver) []netip.AddrPort {
	n, first := len(r.Servers), 0
	if r.Rotate && n > 0 {
		first = int(u.turn.Add(1)-1) % n
	}
	var prompt, slow []netip.AddrPort
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range n {
		s := r.Servers[(first+i)%n]
		if now.Before(u.slow[s]) {
			slow = append(slow, s)
		} else {
			prompt = append(prompt, s)
		}
	}
	return append(prompt, slow...)
}

// mark notes whether a server has kept a client waiting.
func (u *upstream) mark(s netip.AddrPort, slow bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case !slow:
		delete(u.slow, s)
	case u.slow == nil || len(u.slow) > 4*maxServers: // a resolv.conf that changes all the time
		u.slow = map[netip.AddrPort]time.Time{s: time.Now().Add(slowFor)}
	default:
		u.slow[s] = time.Now().Add(slowFor)
	}
}

// ask asks one server, from a socket of its own: its port is part of what somebody who
// wants to answer in the server's place would have to guess.
func (u *upstream) ask(ctx context.Context, network string, q *query, server netip.AddrPort) ([]byte, error) {
	c, err := u.open(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if network == "tcp" {
		return askStream(c, q)
	}
	if _, err := c.Write(q.raw); err != nil {
		return nil, err
	}
	for {
		if err := c.awaitDatagram(); err != nil {
			return nil, err
		}
		b, err := c.datagram()
		if err != nil {
			return nil, err
		}
		if q.answers(b) {
			return b, nil
		}
	}
}

// replies are buffers for one datagram each, of any size: a server may send more than it was asked for.
var replies = sync.Pool{New: func() any { b := make([]byte, 65535); return &b }}

// open dials a server; what is opened ends with ctx.
func (u *upstream) open(ctx context.Context, network string, server netip.AddrPort) (*bounded, error) {
	c, err := u.dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	return &bounded{c, context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })}, nil
}

// bounded is a connection whose deadline is the end of a context.
type bounded struct {
	net.Conn
	release func() bool
}

func (b *bounded) Close() error {
	b.release()
	return b.Conn.Close()
}

// awaitDatagram waits until there is one to be read, and holds no buffer for it meanwhile: where no server answers, all queries
// of all pods wait here. A connection that is none of the kernel's is not waited for.
func (b *bounded) awaitDatagram() error {
	s, is := b.Conn.(syscall.Conn)
	if !is {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var told error // by the kernel, which tells it once: nobody listens there
	err = raw.Read(func(fd uintptr) bool {
		for {
			if _, _, told = syscall.Recvfrom(int(fd), nil, syscall.MSG_PEEK|syscall.MSG_DONTWAIT); told != syscall.EINTR {
				return told != syscall.EAGAIN
			}
		}
	})
	if err == nil && told != nil {
		err = os.NewSyscallError("recvfrom", told)
	}
	return err
}

// datagram reads one.
func (b *bounded) datagram() ([]byte, error) {
	buf := replies.Get().(*[]byte)
	defer replies.Put(buf)
	n, err := b.Read(*buf)
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), (*buf)[:n]...), nil
}

func askStream(c net.Conn, q *query) ([]byte, error) {
	if _, err := c.Write(prefixed(q.raw)); err != nil {
		return nil, err
	}
	for {
		b, err := readPrefixed(c)
		if err != nil {
			return nil, err
		}
		if q.answers(b) {
			return b, nil
		}
	}
}

// readPrefixed reads one message as it goes over TCP.
func readPrefixed(r io.Reader) ([]byte, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(n[:]))
	_, err := io.ReadFull(r, b)
	return b, err
}

// transfer asks the first server that can be reached for a zone, which is many messages, and gives
// each to write until the server has no more to say.
func (u *upstream) transfer(ctx context.Context, q *query, r Resolver, idle time.Duration, write func([]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, transferLimit)
	defer cancel()
	failure := errNoServer
	for _, server := range u.order(r) {
		c, err := u.open(ctx, "tcp", server)
		if err != nil {
			failure = fmt.Errorf("%v: %w", server, err)
			continue
		}
		defer c.Close()
		if _, err := c.Write(prefixed(q.raw)); err != nil {
			return err
		}
		for {
			c.SetReadDeadline(time.Now().Add(idle))
			b, err := readPrefixed(c)
			if err != nil {
				return nil // the client sees by its records whether that was all
			}
			if err := write(b); err != nil {
				return err
			}
		}
	}
	return failure
}
