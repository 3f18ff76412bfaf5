package names

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/internal/accept"
)

// ServeTCP answers the connections of l until ctx ends or l is closed, and closes it. When it
// returns nothing that it began goes on. It returns nil after ctx has ended.
func (s *Server) ServeTCP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var begun sync.WaitGroup
	defer begun.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	var failures accept.Failures
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err != nil && !s.goesOn(ctx, &failures, err):
			return err
		case err != nil:
			continue
		}
		failures.Succeeded()
		select {
		case s.conns <- struct{}{}:
		default:
			s.count(busy)
			c.Close()
			continue
		}
		begun.Go(func() {
			defer func() { <-s.conns }()
			s.stream(ctx, c)
		})
	}
}

// stream answers the queries of one connection, one after the other.
func (s *Server) stream(ctx context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	write := func(b []byte) error {
		c.SetWriteDeadline(time.Now().Add(tcpIdle))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_, err := c.Write(prefixed(b))
		return err
	}
	for {
		c.SetReadDeadline(time.Now().Add(tcpIdle))
		if ctx.Err() != nil {
			return
		}
		raw, err := readPrefixed(c)
		if err != nil {
			return
		}
		q, reply, later := s.atOnce(raw, false)
		if later {
			reply = s.streamed(ctx, &q, write)
			s.free()
		}
		if reply == nil || write(reply) != nil {
			return
		}
	}
}

// streamed answers a query that waits for others; nil ends the connection.
func (s *Server) streamed(ctx context.Context, q *query, write func([]byte) error) []byte {
	if q.kind != dns.TypeAXFR && q.kind != dns.TypeIXFR {
		return s.wait(ctx, q, "tcp", dns.MaxMsgSize)
	}
	if err := s.up.transfer(ctx, q, s.cfg.Resolver(), tcpIdle, write); err != nil {
		return s.passOn(q, nil, err, dns.MaxMsgSize)
	}
	s.count(passed)
	return nil
}
