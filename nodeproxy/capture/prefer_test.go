//go:build linux

package capture

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"
)

// Listeners take over from each other under connections: an older one that is closed has nothing to lose.
func TestNothingIsLostWithAListenerThatAYoungerOneFollows(t *testing.T) {
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
				must(t, Prefer(p.ns, l.(*net.TCPListener)))
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
			go func() {
				var failed []error
				for {
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
