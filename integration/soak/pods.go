//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// pod is one application and what discovery says of it.
type pod struct {
	name, service, network, node string
	address                      netip.Addr

	mu       sync.Mutex
	state    state
	life     int // how many pods of this name there have been
	listener net.Listener
}

type state string

const (
	ready       state = "ready"
	terminating state = "terminating"
	absent      state = ""
)

func (p *pod) set(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s == ready && p.state == absent {
		p.life++
	}
	p.state = s
}

func (p *pod) workload() (discovery.Workload, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return discovery.Workload{
		UID: fmt.Sprintf("%s.%d", p.name, p.life), Name: p.name, ServiceAccount: p.service, Network: p.network, Node: p.node, State: string(p.state),
		Addresses: []netip.Addr{p.address}, Services: []string{p.service + ".default.svc.cluster.local"},
	}, p.state != absent
}

// listen lets the application accept.
func (p *pod) listen(a *apps) error {
	l, err := net.Listen("tcp4", netip.AddrPortFrom(p.address, appPort).String())
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	go a.accept(l)
	return nil
}

// shut closes the listener. Connections go on.
func (p *pod) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
}

// apps are all applications of all pods, and what their connections came to.
type apps struct {
	conns sync.WaitGroup
	mu    sync.Mutex
	seen  tally
}

func (a *apps) wait() { a.conns.Wait() }

func (a *apps) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		a.conns.Go(func() {
			e, o := serve(c.(*net.TCPConn))
			if errors.Is(o.err, io.EOF) {
				return // a probe, or a connect whose client was gone: not one byte came
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			a.seen.server(e, o)
		})
	}
}

// take returns what was counted since the last take.
func (a *apps) take() tally {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.seen
	a.seen = tally{}
	return t
}

// churn replaces pods, one after the other, until ctx ends: each is terminating
// for as long as a connection may last, then gone, then there again under
// another UID, and for a second its application does not yet listen.
func (m *mesh) churn(ctx context.Context, rng *rand.Rand) error {
	sleep := func(d time.Duration) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
	set := func(p *pod, s state) error {
		p.set(s)
		return m.publish()
	}
	for sleep(time.Second) {
		p := m.pods[rng.IntN(len(m.pods))]
		err := set(p, terminating)
		sleep(6 * time.Second)
		err = errors.Join(err, set(p, absent))
		sleep(time.Second)
		p.shut()
		err = errors.Join(err, set(p, ready))
		sleep(time.Second)
		if err = errors.Join(err, p.listen(&m.apps)); err != nil {
			return fmt.Errorf("replace pod %s: %w", p.name, err)
		}
	}
	return nil
}
