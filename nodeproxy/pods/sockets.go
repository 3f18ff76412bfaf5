package pods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// maxAddresses is how many addresses of a network namespace an error names.
const maxAddresses = 8

// notIts says that a workload's address is at no interface of its network namespace, which has those of has.
func notIts(address netip.Addr, has []netip.Addr) error {
	var others []string
	for _, a := range has {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			others = append(others, a.String())
		}
	}
	there := "it has none yet: wait until its pod has one, or give it one"
	if n := len(others); n > 0 {
		there = "it has " + strings.Join(others[:min(n, maxAddresses)], ", ")
		if more := n - maxAddresses; more > 0 {
			there += fmt.Sprintf(" and %d more", more)
		}
		there += ": if it is this pod's, have one of these as the first of its addresses in discovery, else name the file of its own network namespace (capture.namespaces[].path)"
	}
	return fmt.Errorf("no interface of its network namespace has its address %s; %s", address, there)
}

// open opens the sockets of h in its namespace, and then sets its rules. What it has opened when it
// fails is the caller's to close; rules are not set then.
func (c *Set) open(h *Pod, w *mesh.Workload) error {
	home, err := podns.Own()
	if err != nil {
		return err
	}
	if h.place.ns.ID() == home {
		return c.ownNamespace(h.place)
	}
	for _, o := range c.List() {
		if o.place.ns.ID() == h.place.ns.ID() {
			return c.notSingle(h.place, o.uid)
		}
	}
	addresses, err := h.place.ns.Addresses()
	if err != nil {
		return err
	}
	if !slices.Contains(addresses, h.address) {
		return notIts(h.address, addresses)
	}
	defer h.place.ns.Lock(lockWithin)() // or of two that enter at once the older one's rules might be set last
	owner, by, ours, err := capture.SetBy(h.place.ns)
	if err != nil {
		return err
	}
	if ours && owner != h.rules.Owner {
		return fmt.Errorf("it is captured by a node proxy of another mesh or network (%s; this is one of %s): run one of the two on this node, or end the other's capture with capture.scope release", owner, h.rules.Owner)
	}
	if ours && by.Began > c.began {
		if alive, err := capture.Alive(h.place.ns, netip.AddrPortFrom(h.address, mesh.HBONEPort), by); alive || err != nil {
			return errors.Join(err, errYounger)
		}
	}
	loopback, listen := loopbackOf(addresses), h.listener(!ours)
	in, err := listen(netip.AddrPortFrom(h.address, mesh.HBONEPort))
	if err != nil {
		return err
	}
	h.incoming.Tunnels = in.(*net.TCPListener)
	h.rules.By.Began = c.began
	if h.rules.By.Socket, err = capture.Cookie(h.incoming.Tunnels); err != nil {
		return err
	}
	if h.incoming.Undecided, err = capture.OpenUndecided(h.place.ns, h.rules.By, h.watch); err != nil {
		return err
	}
	h.rules.Group = h.incoming.Undecided.Group()
	if h.elders, err = capture.Sharers(h.place.ns, h.incoming.Tunnels); lacking(err) != nil {
		return err
	}
	for _, a := range loopback {
		l, err := listen(netip.AddrPortFrom(a, capture.OutboundPort), tcp.KeepAlive)
		if err != nil {
			return err
		}
		h.incoming.Opened = append(h.incoming.Opened, l.(*net.TCPListener))
	}
	if c.cfg.All() {
		l, err := c.listenEverywhere(listen, capture.InboundPort)
		if err != nil {
			return err
		}
		h.incoming.Arriving = l.(*net.TCPListener)
	}
	if h.server, err = c.p.Serve(h, h.incoming); err != nil {
		return err
	}
	if err := c.openNames(h, addresses, loopback, nil, listen); err != nil {
		return err
	}
	if h.ports, err = capture.PortsOf(h.place.ns); err != nil {
		return err
	}
	if err := c.openSource(h, addresses, !ours); err != nil {
		return err
	}
	if err := c.set(h); err != nil {
		c.closeSource(h, !ours)
		return err
	}
	if ours {
		h.beside = true
		c.prefer(h, true)
		h.judged = judged{} // connections from a time without a node proxy have not met policies
	}
	return nil
}

// errYounger is why a pod is left alone which is captured.
var errYounger = errors.New("the node proxy that has begun after this one has captured it: this one does when that has ended")

// lockWithin bounds the wait for another node proxy of ours that enters the same pod, which takes some 10 ms.
const lockWithin = 250 * time.Millisecond

// set sets the rules of h, unless this process stops: those of the next one would be replaced.
func (c *Set) set(h *Pod) error {
	if c.p.Draining() {
		return errStops
	}
	return c.setRules(h, h.rules)
}

// loopbackOf are the loopback addresses of a pod: without IPv6 it has one.
func loopbackOf(addresses []netip.Addr) []netip.Addr {
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	if slices.Contains(addresses, netip.IPv6Loopback()) {
		loopback = append(loopback, netip.IPv6Loopback())
	}
	return loopback
}

// listenFunc opens a listener in a pod.
type listenFunc func(a netip.AddrPort, more ...tcp.Control) (net.Listener, error)

// listener returns what opens listeners in the pod of h. fresh: nobody of ours is there, whom this process would take
// over from, and nobody else is to be.
func (h *Pod) listener(fresh bool) listenFunc {
	return func(a netip.AddrPort, more ...tcp.Control) (net.Listener, error) {
		if fresh {
			if err := capture.Free(h.place.ns, a); err != nil {
				return nil, err
			}
		}
		lc := net.ListenConfig{KeepAlive: -1, Control: tcp.Controls(append([]tcp.Control{h.place.ns.Control, capture.Share}, more...)...)}
		l, err := lc.Listen(context.Background(), "tcp", a.String())
		if err != nil {
			return nil, fmt.Errorf("listen in its network namespace: %w", err)
		}
		return l, nil
	}
}

// listenEverywhere listens at all addresses of a pod, of both families, if its kernel has both.
func (c *Set) listenEverywhere(listen listenFunc, port uint16) (net.Listener, error) {
	l, err := listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port), tcp.KeepAlive)
	if errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL) {
		c.noIPv6.Do(func() {
			c.p.Log.Info().Err(err).Msg("this host has no IPv6: what is opened to pods is captured by IPv4 alone")
		})
		return listen(netip.AddrPortFrom(netip.IPv4Unspecified(), port), tcp.KeepAlive)
	}
	return l, err
}

// prefer has what h has opened get all connections, where another process of ours may listen as well: that one is
// to stop. last: it has just been opened.
func (c *Set) prefer(h *Pod, last bool) {
	for _, l := range h.incoming.list() {
		if err := capture.Prefer(h.place.ns, l, last); err != nil {
			c.p.Log.Warn().Str("workload", h.uid).Err(err).Msg("connections that the node proxy before this one has not accepted when it stops are reset")
		}
	}
}
