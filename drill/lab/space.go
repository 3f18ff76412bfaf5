package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// lockPort is held on 127.<second>.255.1 for as long as a drill uses the /16.
const lockPort = 15007

// claim finds a /16 of 127.0.0.0/8 in which every address of s is free, and
// holds it until release, so that drills on one machine do not meet.
func claim(ctx context.Context, at *network, s *scenario.Scenario) (l *scenario.Layout, release func(), err error) {
	var last error
	for try := range 32 {
		second := scenario.SecondByte(s.Seed, os.Getpid(), try)
		lock, err := at.listen(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, second, 255, 1}), lockPort))
		if err != nil {
			last = err
			continue
		}
		l := scenario.NewLayout(s, second)
		if last = free(ctx, at, l); last == nil {
			return l, func() { lock.Close() }, nil
		}
		lock.Close()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
	}
	return nil, nil, fmt.Errorf("find free loopback addresses 127.x.0.0/16: %w: the drill needs Linux, where all of 127.0.0.0/8 is local, and ports 15008 and 15000 free on one of them", last)
}

// free reports whether every address of l can be listened on.
func free(ctx context.Context, at *network, l *scenario.Layout) error {
	var errs []error
	try := func(a netip.AddrPort) {
		s, err := at.listen(ctx, a)
		if err != nil {
			errs = append(errs, err)
			return
		}
		s.Close()
	}
	for _, g := range l.Gateways {
		try(g.Address)
		try(g.Admin)
	}
	for _, n := range l.Nodes {
		try(n.Admin)
	}
	for _, p := range l.Pods {
		try(netip.AddrPortFrom(p.Address, mesh.HBONEPort))
		for _, port := range l.Scenario.Ports() {
			try(netip.AddrPortFrom(p.Address, port.Target))
		}
	}
	for _, c := range l.Clients {
		for _, a := range c.Listen {
			try(a)
		}
	}
	for _, r := range l.Relays {
		try(r.Listen)
	}
	return errors.Join(errs...)
}
