package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/names"
	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// nameSockets answer the queries of one captured workload. They end with their context.
type nameSockets struct {
	server  *names.Server
	udp     []*net.UDPConn
	tcp     []net.Listener
	servers []netip.Addr   // queries to whom come here
	capture *capture.Names // leads them here; nil until it does
	served  sync.WaitGroup
}

// resolvConf is where a pod has what its resolver goes by.
const resolvConf = "/etc/resolv.conf"

// resolvConfOf is what a workload's own resolver goes by; not ok if it has nothing that
// queries could be captured of.
func (c *Set) resolvConfOf(h *Pod) (r names.Resolver, ok bool, err error) {
	if a := h.place.told; a != nil {
		if a.resolver == nil {
			return r, false, nil
		}
		return *a.resolver, resolvable(*a.resolver), nil
	}
	var text []byte
	if h.place.sandbox != nil {
		text, err = c.readFile(h.uid, resolvConf, h.place.sandbox.ReadFile)
	} else {
		i := slices.IndexFunc(c.cfg.Namespaces, func(n Namespace) bool { return n.Workload == h.uid })
		if i < 0 || c.cfg.Namespaces[i].ResolvConf == "" {
			return r, false, nil
		}
		if text, err = os.ReadFile(c.cfg.Namespaces[i].ResolvConf); err != nil {
			return r, false, misnamedError{fmt.Errorf("capture.namespaces[%d].resolvConf: %w: name the file by which the pod resolves, or leave it out, and names are not answered in it", i, err)}
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("read its resolver configuration: %w", err)
	}
	r = names.ParseResolvConf(string(text))
	return r, resolvable(r), nil
}

// resolvable reports whether r has a server that queries to it can be captured of.
func resolvable(r names.Resolver) bool {
	return slices.ContainsFunc(r.Servers, func(s netip.AddrPort) bool { return !s.Addr().IsLoopback() })
}

// openNames opens the sockets for the names of h at those addresses, and leads its queries there, also those to whom it had
// before.
func (c *Set) openNames(h *Pod, addresses, loopback, before []netip.Addr, listen listenFunc) error {
	r, ok, err := c.resolvConfOf(h)
	if err != nil || !ok {
		return err
	}
	ns := h.place.ns
	var servers []netip.Addr
	for _, s := range r.Servers {
		servers = append(servers, s.Addr())
	}
	servers = capture.Following(before, servers)
	h.names = &nameSockets{server: c.p.Names(h.uid, addresses, func() names.Resolver { return r }, dialServer(ns)), servers: servers}
	for _, a := range loopback {
		l, err := listen(netip.AddrPortFrom(a, capture.NamesPort))
		if err != nil {
			return err
		}
		h.names.tcp = append(h.names.tcp, l)
	}
	for _, at := range capture.QueriesTo(servers) {
		if !slices.Contains(loopback, at.Addr()) {
			continue // without that version of IP nobody asks there
		}
		lc := net.ListenConfig{Control: tcp.Controls(ns.Control, capture.Share)}
		u, err := lc.ListenPacket(context.Background(), "udp", at.String())
		if err != nil {
			return fmt.Errorf("listen in its network namespace: %w", err)
		}
		h.names.udp = append(h.names.udp, u.(*net.UDPConn))
	}
	h.names.capture, err = capture.CaptureNames(ns, servers)
	return err
}

// reopenNames has the names of h answered by the resolver that it has now. What else is open of it stays as it is, and
// queries come to the new sockets before the old ones are given up. Run calls it, as leave.
func (c *Set) reopenNames(h *Pod) error {
	addresses, err := h.place.ns.Addresses()
	if err != nil {
		return err
	}
	next := &Pod{uid: h.uid, place: h.place}
	var before []netip.Addr
	if h.names != nil {
		before = h.names.servers
	}
	err = c.openNames(next, addresses, loopbackOf(addresses), before, next.listener(false))
	c.mu.Lock()
	if err == nil && c.p.Draining() {
		err = errStops
	}
	old := h.names
	if err == nil {
		h.names = next.names
		h.names.serve(h.data, c.p.Go)
	}
	c.mu.Unlock()
	if err != nil {
		next.names.close()
		return err
	}
	old.release()
	c.leaving.Go(func() {
		ctx, cancel := context.WithTimeout(h.data, c.cfg.Drain)
		defer cancel()
		old.drain(ctx)
	})
	return nil
}

// dialServer reaches the DNS servers of a pod from where it is.
func dialServer(ns *podns.Namespace) func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, network string, server netip.AddrPort) (net.Conn, error) {
		d := net.Dialer{Control: tcp.Controls(ns.Control, capture.Mark)}
		if zone := server.Addr().Zone(); zone != "" { // an interface of the pod, not of this process
			i, err := ns.Interface(zone)
			if err != nil {
				return nil, fmt.Errorf("nameserver %v: %w", server.Addr(), err)
			}
			server = netip.AddrPortFrom(server.Addr().WithZone(strconv.Itoa(i)), server.Port())
		}
		return d.DialContext(ctx, network, server.String())
	}
}

// serve answers until ctx ends.
func (n *nameSockets) serve(ctx context.Context, run func(func())) {
	if n == nil {
		return
	}
	n.served.Add(len(n.udp) + len(n.tcp))
	for _, u := range n.udp {
		run(func() {
			defer n.served.Done()
			n.server.ServeUDP(ctx, u)
		})
	}
	for _, l := range n.tcp {
		run(func() {
			defer n.served.Done()
			n.server.ServeTCP(ctx, l)
		})
	}
}

// lastQueries is how long queries are taken that were in a socket's queue when it was released.
const lastQueries = 50 * time.Millisecond

// release has the pod ask its own resolvers, or the next node proxy; what was asked before is answered
// until drain has returned.
func (n *nameSockets) release() {
	if n == nil {
		return
	}
	if n.capture != nil && n.capture.Release() != nil {
		n.capture.Close()
	}
	for _, l := range n.tcp {
		l.Close()
	}
	for _, u := range n.udp {
		capture.Leave(u)
		u.SetReadDeadline(time.Now().Add(lastQueries))
	}
}

// drain returns when what was asked before release has been answered, or ctx has ended.
func (n *nameSockets) drain(ctx context.Context) {
	if n == nil {
		return
	}
	ended := make(chan struct{})
	go func() { // ends at the latest with the context of serve
		n.served.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	if n.capture != nil {
		n.capture.Close()
	}
}

// close ends sockets that nobody serves.
func (n *nameSockets) close() {
	n.release()
	if n == nil {
		return
	}
	if n.capture != nil {
		n.capture.Close()
	}
	for _, u := range n.udp {
		u.Close()
	}
}
