//go:build linux

package capture

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Listeners take over from each other under connections: an older one that is closed has nothing to lose.
func TestNothingIsLostWithAListenerThatAYoungerOneFollows(t *testing.T) {
	ways := map[string]func(*podns.Namespace, *net.TCPListener) error{
		"by its socket": func(_ *podns.Namespace, l *net.TCPListener) error { return withFD(l, selectOnly) },
		"by its number": func(ns *podns.Namespace, l *net.TCPListener) error {
			raw, err := l.SyscallConn()
			must(t, err)
			return preferLast(ns, l, raw)
		},
	}
	for way, prefer := range ways {
		t.Run(way, func(t *testing.T) { followed(t, prefer) })
	}
}

// withFD calls f with the descriptor of l.
func withFD(l *net.TCPListener, f func(int) error) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

// meanwhile waits for the next dial.
func meanwhile(dials *atomic.Int64) {
	for n := dials.Load(); dials.Load() == n; {
		time.Sleep(100 * time.Microsecond)
	}
}

// followed has listeners follow each other, each of which prefer prefers.
func followed(t *testing.T, prefer func(*podns.Namespace, *net.TCPListener) error) {
	for _, address := range []string{"127.0.0.1:15001", "[::1]:15001"} {
		t.Run(address, func(t *testing.T) {
			p := newPod(t)
			listen := func() *net.TCPListener {
				lc := net.ListenConfig{Control: func(n, a string, c syscall.RawConn) error {
					if err := p.ns.Control(n, a, c); err != nil {
						return err
					}
					return Share(n, a, c)
				}}
				l, err := lc.Listen(context.Background(), "tcp", address)
				must(t, err)
				must(t, prefer(p.ns, l.(*net.TCPListener)))
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						c.Write([]byte{1})
						c.Close()
					}
				}()
				return l.(*net.TCPListener)
			}
			now := listen()
			stop, done := make(chan struct{}), make(chan []error, 1)
			var dials atomic.Int64
			go func() {
				var failed []error
				for {
					dials.Add(1)
					select {
					case <-stop:
						done <- failed
						return
					default:
					}
					c, err := p.dial("tcp", address, nil)
					if err != nil {
						failed = append(failed, err)
						continue
					}
					if _, err := c.Read(make([]byte, 1)); err != nil {
						failed = append(failed, err)
					}
					c.(*net.TCPConn).SetLinger(0)
					c.Close()
				}
			}()
			for range 100 {
				next := listen()
				// Idle does not see a handshake that a busy kernel has not completed. It ends before the next dial.
				meanwhile(&dials)
				Idle(now, time.Second)
				now.Close()
				now = next
			}
			close(stop)
			if failed := <-done; len(failed) > 0 {
				t.Errorf("%d connections failed while listeners took over: %v", len(failed), failed[0])
			}
			now.Close()
		})
	}
}

// Whichever of the others is closed, and wherever the kernel moves the listener that is preferred, connections come to that
// one; when it is closed too they come to those that are left.
func TestConnectionsComeToThePreferredListenerWhoeverIsClosed(t *testing.T) {
	for _, address := range []string{"127.0.0.1:15001", "[::1]:15001"} {
		for closed := range 3 {
			p := newPod(t)
			var group []*net.TCPListener
			for range 4 {
				lc := net.ListenConfig{Control: func(n, a string, c syscall.RawConn) error {
					if err := p.ns.Control(n, a, c); err != nil {
						return err
					}
					return Share(n, a, c)
				}}
				l, err := lc.Listen(t.Context(), "tcp", address)
				must(t, err)
				defer l.Close()
				group = append(group, l.(*net.TCPListener))
			}
			last := group[3]
			waiting := func(l *net.TCPListener) (n uint32) {
				t.Helper()
				must(t, withFD(l, func(fd int) error {
					info, err := unix.GetsockoptTCPInfo(fd, unix.SOL_TCP, unix.TCP_INFO)
					if err == nil {
						n = info.Unacked
					}
					return err
				}))
				return n
			}
			const n = 20
			open := func() {
				t.Helper()
				for range n {
					c, err := p.dial("tcp", address, nil)
					must(t, err)
					t.Cleanup(func() { c.Close() })
				}
			}
			must(t, Prefer(p.ns, last, true))
			group[closed].Close()
			open()
			if got := waiting(last); got != n {
				t.Errorf("%s, number %d of 4 is closed: %d of %d connections come to the last", address, closed, got, n)
			}
			must(t, Prefer(p.ns, last, false))
			open()
			if got := waiting(last); got != 2*n {
				t.Errorf("%s, number %d of 4 is closed, and the last preferred again: %d of %d connections come to that", address, closed, got, 2*n)
			}
			last.Close()
			open()
			var left uint32
			for i, l := range group[:3] {
				if i != closed {
					left += waiting(l)
				}
			}
			if left != n {
				t.Errorf("%s, the last is closed too: %d of %d connections come to the others", address, left, n)
			}
		}
	}
}
