package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// open opens the sockets of h in its namespace, and then sets its rules. What it has opened when it
// fails is the caller's to close; rules are not set then.
func (c *captures) open(h *captured, w *mesh.Workload) error {
	if home, err := podns.Own(); err != nil || h.place.ns.ID() == home {
		return errors.Join(err, errors.New("its network namespace is that of this node proxy"))
	}
	for _, o := range c.list() {
		if o.place.ns.ID() == h.place.ns.ID() {
			return notSingle(o.uid)
		}
	}
	addresses, err := h.place.ns.Addresses()
	if err != nil {
		return err
	}
	if !slices.Contains(addresses, h.address) {
		return fmt.Errorf("no interface of its network namespace has its address %s", h.address)
	}
	owner, ours, err := capture.Owner(h.place.ns)
	if err != nil {
		return err
	}
	if ours && owner != h.rules.Owner {
		return fmt.Errorf("it is captured by a node proxy of another mesh or network (%s; this is one of %s): run one of the two on this node, or end the other's capture with capture.scope release", owner, h.rules.Owner)
	}
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if slices.Contains(addresses, netip.IPv6Loopback()) {
		loopback = append(loopback, netip.IPv6Loopback())
	}
	listen := func(a netip.AddrPort, more ...control) (net.Listener, error) {
		if !ours { // or those of another node proxy of ours, which this one takes over from
			if err := capture.Free(h.place.ns, a); err != nil {
				return nil, err
			}
		}
		lc := net.ListenConfig{KeepAlive: -1, Control: controls(append([]control{h.place.ns.Control, capture.Share}, more...)...)}
		l, err := lc.Listen(context.Background(), "tcp", a.String())
		if err != nil {
			return nil, fmt.Errorf("listen in its network namespace: %w", err)
		}
		return l, nil
	}
	in, err := listen(netip.AddrPortFrom(h.address, mesh.HBONEPort))
	if err != nil {
		return err
	}
	h.in = newInbound(c.p, h.uid, in)
	for _, a := range loopback {
		l, err := listen(netip.AddrPortFrom(a, capture.OutboundPort), keepAlive)
		if err != nil {
			return err
		}
		o, err := c.p.newOutbound(l.(*net.TCPListener), h.share.counted(c.p.captured(h)))
		if err != nil {
			return err
		}
		o.refuse = h.share.refuse(c.p, access{source: h.uid, direction: "outbound"}, c.p.refusalOfAll(h.uid))
		h.outs = append(h.outs, o)
	}
	if c.cfg.all() {
		l, err := listen(netip.AddrPortFrom(netip.IPv6Unspecified(), capture.InboundPort), keepAlive) // of both families
		if err != nil {
			return err
		}
		o, err := c.p.newOutbound(l.(*net.TCPListener), h.arriving.counted(c.p.arrived(h)))
		if err != nil {
			return err
		}
		o.refuse = h.arriving.refuse(c.p, access{workload: h.uid, direction: "inbound", plain: true}, func(int) func() { return nil }) // those of others wait for their turn
		h.outs = append(h.outs, o)
	}
	if err := c.openNames(h, addresses, loopback, listen); err != nil {
		return err
	}
	if err := c.openSource(h, addresses, !ours); err != nil {
		return err
	}
	if err := capture.Set(h.place.ns, h.rules); err != nil {
		c.closeSource(h, !ours)
		return err
	}
	if ours {
		c.prefer(h)
	}
	return nil
}

// prefer has what h has opened get all connections, where another process of ours may listen as well: that one is
// to stop.
func (c *captures) prefer(h *captured) {
	for _, l := range h.listeners() {
		if err := capture.Prefer(h.place.ns, l); err != nil {
			c.p.log.Warn().Str("workload", h.uid).Err(err).Msg("connections that the node proxy before this one has not accepted when it stops are reset")
		}
	}
}

// control is a Control of package net.
type control = func(network, address string, c syscall.RawConn) error

// controls calls one after the other.
func controls(all ...control) control {
	return func(network, address string, c syscall.RawConn) error {
		for _, f := range all {
			if err := f(network, address, c); err != nil {
				return err
			}
		}
		return nil
	}
}
