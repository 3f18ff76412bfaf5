package demoapp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Exchange says who speaks first on a new connection.
type Exchange string

const (
	// Request waits for the line "hello <n>" and answers "<name> <port> <n>".
	Request Exchange = "request"
	// Banner sends "<name> <port>" before anything else.
	Banner Exchange = "banner"
)

// Config is what one application is.
type Config struct {
	Name     string
	Listen   []netip.AddrPort // one port each; ports must differ
	Exchange Exchange         // zero is Request
}

// App answers on all its ports until Close. Safe for concurrent use.
type App struct {
	cfg   Config
	ports map[uint16]*port
	conns sync.WaitGroup
}

// Start listens on every address of c; on an error nothing is left open.
func Start(ctx context.Context, c Config) (*App, error) {
	if c.Name == "" {
		return nil, errors.New("name is empty: give the application a name, for example web-1")
	}
	if len(c.Listen) == 0 {
		return nil, errors.New("no listen address: give at least one, for example 127.0.0.1:8080")
	}
	if c.Exchange == "" {
		c.Exchange = Request
	}
	if c.Exchange != Request && c.Exchange != Banner {
		return nil, fmt.Errorf("exchange %q is unknown: use %s or %s", c.Exchange, Request, Banner)
	}
	a := &App{cfg: c, ports: map[uint16]*port{}}
	for _, addr := range c.Listen {
		if a.ports[addr.Port()] != nil {
			a.Close()
			return nil, fmt.Errorf("listen %s: port %d is given twice: one address per port", addr, addr.Port())
		}
		p := &port{app: a, addr: addr}
		if err := p.open(ctx); err != nil {
			a.Close()
			return nil, err
		}
		a.ports[addr.Port()] = p
	}
	return a, nil
}

// Close stops listening, closes every connection and waits until all of its
// goroutines are gone.
func (a *App) Close() {
	for _, p := range a.ports {
		p.shut()
	}
	a.conns.Wait()
}

// Refuse makes connections to the port fail with ECONNREFUSED from the moment
// that it returns. Connections that were made before are answered as ever,
// those that wait to be accepted too.
func (a *App) Refuse(ctx context.Context, portNumber uint16) error {
	return a.with(portNumber, func(p *port) error { return p.refuse(ctx) })
}

// Hang makes new TCP connects to the port go unanswered; they get through when
// the port heals and they still try.
func (a *App) Hang(_ context.Context, portNumber uint16) error {
	return a.with(portNumber, (*port).hang)
}

// Silence makes the port accept connections and never send a byte, on those
// that are open already too.
func (a *App) Silence(_ context.Context, portNumber uint16) error {
	return a.with(portNumber, (*port).silence)
}

// Slow makes the port take each new connection only delay after the kernel has
// made it: nothing is read or sent before. Those that wait when the port heals
// are served at once.
func (a *App) Slow(_ context.Context, portNumber uint16, delay time.Duration) error {
	return a.with(portNumber, func(p *port) error { return p.slow(delay) })
}

// Heal ends whatever fault the port has; without one it changes nothing.
// Lines that arrived while the port was silent are answered late.
func (a *App) Heal(ctx context.Context, portNumber uint16) error {
	return a.with(portNumber, func(p *port) error { return p.heal(ctx) })
}

func (a *App) with(number uint16, do func(*port) error) error {
	p := a.ports[number]
	if p == nil {
		return fmt.Errorf("port %d: this application does not listen there", number)
	}
	return do(p)
}
