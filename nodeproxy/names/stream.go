package names

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/internal/accept"
)

// ServeTCP answers the connections of l until ctx ends or l is closed, and closes it. If it was l that was
// closed, what was asked on connections is answered before these end. When it
// returns nothing that it began goes on. It returns nil after ctx has ended.
func (s *Server) ServeTCP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var begun sync.WaitGroup
	defer begun.Wait()
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	last, end := context.WithCancel(ctx) // ends with l
	defer end()
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
			end()
			begun.Wait()
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
			s.stream(ctx, last, c)
		})
	}
}

// stream answers the queries of one connection, one after the other; the one that is
// being answered when last ends, before ctx does, is the last.
func (s *Server) stream(ctx, last context.Context, c net.Conn) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer context.AfterFunc(last, func() { c.SetReadDeadline(time.Unix(1, 0)) })()
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
		if last.Err() != nil {
			return
		}
		raw, err := readPrefixed(c)
		if err != nil {
			return
		}
		q, reply, later := s.atOnce(raw, false)
		if later {
			reply = s.streamed(ctx, &q, write)
			s.free(&q)
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
