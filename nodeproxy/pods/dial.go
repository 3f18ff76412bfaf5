package pods

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// dialFrom connects from within a pod's network namespace; no rule of the pod applies. more come
// after all other settings.
func dialFrom(ns *podns.Namespace, keepAlive time.Duration, more ...tcp.Control) tcp.Dial {
	dial := tcp.Dialer(keepAlive, tcp.Controls(append([]tcp.Control{ns.Control, capture.Mark, tcp.ResetUnlessConnected}, more...)...))
	return func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		conn, err := dial(ctx, addr, timeout)
		if err != nil && timedOut(err) {
			// The pod has a connection table of its own.
			if failed := ns.Do(func() error { err = localfault.TimedOut(err); return nil }); failed != nil {
				err = errors.Join(err, localfault.New(failed))
			}
		}
		return conn, err
	}
}

// Dialer returns how connections are opened from where a workload is: in its network namespace, or, by otherwise,
// where this process is if no workload is captured. While that one alone is not, dials fail as a fault of this host
// (see localfault). keepAlive is as in net.Dialer, more as in dialFrom.
func (c *Set) Dialer(uid string, keepAlive time.Duration, otherwise tcp.Dial, more ...tcp.Control) tcp.Dial {
	if c == nil {
		return otherwise
	}
	h := c.Get(uid)
	if h == nil {
		return func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error) {
			return nil, errNotCaptured(uid)
		}
	}
	return h.Dialer(keepAlive, more...)
}

// UDP returns how UDP sockets are opened from where a workload is, as Dialer does for connections.
func (c *Set) UDP(uid string, otherwise OpenUDP) OpenUDP {
	if c == nil {
		return otherwise
	}
	h := c.Get(uid)
	return func(ctx context.Context, to netip.AddrPort) (net.PacketConn, error) {
		if h == nil {
			return nil, errNotCaptured(uid)
		}
		cfg := net.ListenConfig{Control: tcp.Controls(h.place.ns.Control, capture.Mark)}
		return cfg.ListenPacket(ctx, UDPNetwork(to), "")
	}
}

// OpenUDP opens a UDP socket, for packets to an address.
type OpenUDP = func(ctx context.Context, to netip.AddrPort) (net.PacketConn, error)

// UDPNetwork is the network of package net for packets to an address.
func UDPNetwork(to netip.AddrPort) string {
	if to.Addr().Unmap().Is4() {
		return "udp4"
	}
	return "udp6"
}

// Dialer returns how connections are opened from where the pod is, past its rules. keepAlive is as in net.Dialer, more as
// in dialFrom.
func (h *Pod) Dialer(keepAlive time.Duration, more ...tcp.Control) tcp.Dial {
	return dialFrom(h.place.ns, keepAlive, more...)
}

// ApplicationDialer connects to the pod's own addresses from the same address. It
// uses the ports that are meant for that, and any other of the pod if none of
// them is free.
func (h *Pod) ApplicationDialer() tcp.Dial {
	meant, any := dialFrom(h.place.ns, 0, capture.Own(h.ports)), h.Dialer(0)
	return func(ctx context.Context, addr netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		conn, err := meant(ctx, addr, timeout)
		var late net.Error
		if localfault.Is(err) && ctx.Err() == nil && !(errors.As(err, &late) && late.Timeout()) {
			return any(ctx, addr, timeout)
		}
		return conn, err
	}
}

// errNotCaptured is a local failure: it does not concern the workload's application.
func errNotCaptured(uid string) error {
	return localfault.New(errors.New("this node proxy is not in the network namespace of workload " + uid))
}
