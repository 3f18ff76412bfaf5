package nodeproxy

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A question is answered by the first of its connects that is, fails as soon as one is refused, and otherwise when its time is
// over. It leaves nothing open, whatever comes of the others.
func TestAQuestionIsAnsweredByOneOfItsConnects(t *testing.T) {
	const lost = 0 // of what a connect comes to: it is dropped, and waits
	answered, refused := time.Millisecond, -time.Millisecond
	for name, c := range map[string]struct {
		connects []time.Duration // when each is answered or, below zero, refused
		took     float64         // of the time of a question
		err      error
	}{
		"at once":                   {[]time.Duration{answered}, 0, nil},
		"refused":                   {[]time.Duration{refused}, 0, syscall.ECONNREFUSED},
		"the first is dropped":      {[]time.Duration{lost, answered}, 0.25, nil},
		"all but the last":          {[]time.Duration{lost, lost, lost, answered}, 0.75, nil},
		"refused after it was full": {[]time.Duration{lost, lost, refused}, 0.5, syscall.ECONNREFUSED},
		"late, before the second":   {[]time.Duration{700 * time.Millisecond, lost, lost}, 0.7, nil},
		"nobody":                    {[]time.Duration{lost, lost, lost, lost}, 1, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTestWitness(t, "10.0.0.1")
				w.timeout = time.Second
				var begun, open atomic.Int64
				w.connect = func(ctx context.Context, _ netip.AddrPort, timeout time.Duration) (net.Conn, error) {
					d := c.connects[begun.Add(1)-1]
					ctx, cancel := context.WithTimeoutCause(ctx, timeout, os.ErrDeadlineExceeded)
					defer cancel()
					if d == lost {
						<-ctx.Done()
						time.Sleep(time.Millisecond) // it ends a little later
						return nil, context.Cause(ctx)
					}
					time.Sleep(max(d, -d))
					if d < 0 {
						return nil, syscall.ECONNREFUSED
					}
					a, b := net.Pipe()
					open.Add(1)
					b.Close()
					return countedConn{a, &open}, nil
				}
				began := time.Now()
				err := w.ask(t.Context(), w.pod.Load(), 8080)
				if took, want := time.Since(began), time.Duration(c.took*float64(w.timeout)); err != c.err || took < want || took > want+10*time.Millisecond {
					t.Errorf("%v after %v; want %v after %v", err, took, c.err, want)
				}
				if synctest.Wait(); int(begun.Load()) > len(c.connects) || open.Load() != 0 {
					t.Errorf("%d connects, and %d connections are open; want at most %d, and none", begun.Load(), open.Load(), len(c.connects))
				}
			})
		})
	}
}

type countedConn struct {
	net.Conn
	open *atomic.Int64
}

func (c countedConn) Close() error {
	c.open.Add(-1)
	return c.Conn.Close()
}
