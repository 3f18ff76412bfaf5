package hbone

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/net/http2"
)

// RelayResult is what a Relay moved and why it ended. Err is nil when both
// directions ended in order.
type RelayResult struct {
	ToStream int64
	ToConn   int64
	Err      error
}

type sink struct{}

func (*sink) kick() {}

// Relay copies both ways.
func Relay(ctx context.Context, s *Stream, c net.Conn) RelayResult {
	var res RelayResult
	var toConn error
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { s.Reset(http2.ErrCodeCancel); hardClose(c) })
	defer stop()
	go func() {
		defer close(done)
		res.ToConn, toConn = io.Copy(c, struct{ io.Reader }{s})
		if toConn == nil {
			if cw, ok := c.(interface{ CloseWrite() error }); ok {
				cw.CloseWrite()
			}
			return
		}
		s.Reset(http2.ErrCodeConnect)
		hardClose(c)
	}()
	n, err := io.Copy(struct{ io.Writer }{s}, c)
	res.ToStream = n
	if err == nil {
		s.CloseWrite()
	} else if errors.Is(err, syscall.ECONNRESET) {
		s.Reset(http2.ErrCodeConnect)
	}
	<-done
	res.Err = errors.Join(err, toConn)
	s.Close()
	c.Close()
	return res
}

func hardClose(c net.Conn) {
	if tc, ok := c.(interface{ SetLinger(int) error }); ok {
		tc.SetLinger(0)
	}
	c.Close()
}
