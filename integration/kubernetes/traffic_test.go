package kubernetes

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/proxy"
)

// attempt is what became of one connection that a client pod made.
type attempt struct {
	began, ended time.Time
	pod          string // that answered
	err          error
}

// dialTime is the patience of the applications.
const dialTime = 10 * time.Second

// call connects from a client pod to a service, and asks who answers.
func (p *demoPod) call(to string) (a attempt) {
	a.began = time.Now()
	a.pod, a.err = p.ask(to)
	a.ended = time.Now()
	return a
}

func (p *demoPod) ask(to string) (string, error) {
	d, err := proxy.SOCKS5("tcp", net.JoinHostPort(p.address, socksPort), nil, in{p.side.world, p.node.name})
	if err != nil {
		return "", err
	}
	c, err := d.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	return greet(c)
}

// callAt is call by a static listener.
func (p *demoPod) callAt(listener string) (a attempt) {
	a.began = time.Now()
	c, err := p.side.world.Dial(p.node.name, listener)
	if err != nil {
		a.err = err
	} else {
		a.pod, a.err = greet(c)
	}
	a.ended = time.Now()
	return a
}

// greet asks over a connection who answers, and ends it.
func greet(c net.Conn) (string, error) {
	defer c.Close()
	c.SetDeadline(time.Now().Add(dialTime))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("after %q: %w", line, err)
	}
	who, _, _ := strings.Cut(line, " ")
	return who, nil
}

// in dials from a host of a world.
type in struct {
	*world
	host string
}

// Dial implements proxy.Dialer.
func (i in) Dial(_, address string) (net.Conn, error) { return i.world.Dial(i.host, address) }

// traffic is connections of one client pod to one service, at a steady rate.
type traffic struct {
	stop     chan struct{}
	running  sync.WaitGroup
	mu       sync.Mutex
	attempts []attempt
}

// start makes traffic until Stop.
func (p *demoPod) start(to string, every time.Duration) *traffic {
	r := &traffic{stop: make(chan struct{})}
	r.running.Go(func() {
		for tick := time.NewTicker(every); ; {
			select {
			case <-r.stop:
				return
			case <-tick.C:
			}
			r.running.Go(func() {
				a := p.call(to)
				r.mu.Lock()
				defer r.mu.Unlock()
				r.attempts = append(r.attempts, a)
			})
		}
	})
	return r
}

// Stop ends the traffic, and returns what came of all connections.
func (r *traffic) Stop() []attempt {
	close(r.stop)
	r.running.Wait()
	return r.attempts
}

// flawless fails the test for each connection that failed, but shows a few.
func flawless(t *testing.T, all []attempt) {
	t.Helper()
	failed := 0
	for _, a := range all {
		if a.err == nil {
			continue
		}
		if failed++; failed <= 5 {
			t.Errorf("a connection begun at %s failed after %v: %v", a.began.Format(time.StampMilli), a.ended.Sub(a.began), a.err)
		}
	}
	if failed > 0 {
		t.Errorf("%d of %d connections failed, want none", failed, len(all))
	}
	if len(all) == 0 {
		t.Error("there was no connection")
	}
}

// since returns the connections that were begun after an instant and are over.
func (r *traffic) since(begin time.Time) (out []attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.attempts {
		if a.began.After(begin) {
			out = append(out, a)
		}
	}
	return out
}
