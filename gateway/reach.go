package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"golang.org/x/sync/errgroup"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/pathcheck"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

const (
	// reachAtOnce is how many addresses are dialed at the same time.
	reachAtOnce = 16
	// reachTime bounds one attempt.
	reachTime = 4 * time.Second
	// reachAll bounds all attempts and path measurements: the caller waits for half a minute.
	reachAll = 20 * time.Second
	// flowTime bounds the measurement of throughput that may follow.
	flowTime = 6 * time.Second
)

// peerAddress is an address of a gateway of another network, and the identity expected there.
type peerAddress struct {
	network   string
	identity  spiffeid.ID
	address   netip.AddrPort // invalid if unknown
	quic      []string       // where QUIC is dialed, by UDP: addresses or host names, with ports
	published bool           // quic is from records of that network
}

// peersAt returns the addresses of a gateway for TCP, each with its part of those for QUIC, as node proxies dial them.
func peersAt(network string, id spiffeid.ID, tcp []netip.AddrPort, quic []string) (list []peerAddress) {
	for i, a := range tcp {
		p := peerAddress{network: network, identity: id, address: a}
		for k := i; k < max(len(tcp), len(quic)); k += len(tcp) {
			p.quic = append(p.quic, quic[k%len(quic)])
		}
		list = append(list, p)
	}
	return list
}

func textOf(addresses []netip.AddrPort) (list []string) {
	for _, a := range addresses {
		list = append(list, a.String())
	}
	return list
}

// peerAddresses returns the known gateway addresses of all other networks, sorted by network.
func (g *Gateway) peerAddresses() (list []peerAddress) {
	snap := g.store.Current()
	for _, network := range snap.GatewayNetworks() {
		for _, x := range snap.Gateways(network) {
			if network != g.cfg.Network {
				list = append(list, peersAt(network, x.Identity, x.Dialled(false), textOf(x.Dialled(true)))...)
			}
		}
	}
	if g.doors != nil {
		quic := g.publishedAddresses(func(n *record.Network) []record.Address { return n.QUIC })
		for _, d := range g.doors.all() {
			var at []string
			for _, a := range quic[d.Network] {
				at = append(at, net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port))))
			}
			published := len(at) > 0
			if !published {
				at = textOf(d.Addresses)
			}
			for _, p := range peersAt(d.Network, d.Identity, d.Addresses, at) {
				p.published = published
				list = append(list, p)
			}
			if len(d.Addresses) == 0 {
				list = append(list, peerAddress{network: d.Network, identity: d.Identity})
			}
		}
	}
	slices.SortFunc(list, func(a, b peerAddress) int {
		return cmp.Or(cmp.Compare(a.network, b.network), a.address.Compare(b.address), cmp.Compare(a.identity.String(), b.identity.String()))
	})
	return slices.CompactFunc(list, func(a, b peerAddress) bool {
		return a.network == b.network && a.identity == b.identity && a.address == b.address && slices.Equal(a.quic, b.quic)
	})
}

// reach serves GET /reach. It dials the gateways of other networks at each known address and opens a
// tunnel as clients do. The session is a separate one and closes after the answer. Existing
// connections are not used.
func (g *Gateway) reach(w http.ResponseWriter, r *http.Request) {
	ctx, list, network := r.Context(), g.peerAddresses(), r.URL.Query().Get("path")
	if known := dialable(list); network != "" && !slices.Contains(known, network) {
		admin.Fail(w, http.StatusBadRequest, fmt.Errorf("path: %q: no gateway of a network of that name has a known address: %s", network, strictyaml.Suggest(network, known)))
		return
	}
	out := answer.Reach{Process: "gateway " + g.cfg.Name, Network: g.cfg.Network, Tried: tryAll(ctx, list, g.tryTunnel, g.measure)}
	for i := range out.Tried {
		t := &out.Tried[i]
		if transport := g.cfg.Lines.TransportTo(t.Network); transport != lines.TCP {
			t.Transport = transport
		}
		if network != "" && t.Network == network && t.Path != nil {
			g.measureFlow(ctx, list[i], t.Path)
			network = "" // once
		}
	}
	admin.Answer(w, http.StatusOK, out)
}

// dialable returns the networks with a known address, from a list sorted by network.
func dialable(list []peerAddress) (networks []string) {
	for _, p := range list {
		if p.address.IsValid() {
			networks = append(networks, p.network)
		}
	}
	return slices.Compact(networks)
}

// tryAll tries each address, reachAtOnce in parallel, within reachAll. If many addresses do not answer,
// the rest is marked as not dialed. Networks take turns, so that the addresses of one do not exclude
// another. Then it measures the path to each address where TCP connected, as far as the time allows.
func tryAll(ctx context.Context, list []peerAddress, try func(context.Context, peerAddress, *answer.Tried) error, measure func(context.Context, peerAddress, *answer.Tried)) []answer.Tried {
	ctx, cancel := context.WithTimeout(ctx, reachAll)
	defer cancel()
	tried := make([]answer.Tried, len(list))
	eachByTurns(list, func(i int) { tryOne(ctx, list[i], &tried[i], try) })
	eachByTurns(list, func(i int) {
		switch t := &tried[i]; {
		case !t.Connected:
		case ctx.Err() != nil:
			t.PathError = fmt.Sprintf("other paths took all of %v", reachAll)
		default:
			measure(ctx, list[i], t)
		}
	})
	return tried
}

// eachByTurns calls f with each index of a list sorted by network, reachAtOnce in parallel: the first entry
// of each network, then the second of each, and so on.
func eachByTurns(list []peerAddress, f func(i int)) {
	turn, order := make([]int, len(list)), make([]int, len(list))
	for i := range list {
		if order[i] = i; i > 0 && list[i].network == list[i-1].network {
			turn[i] = turn[i-1] + 1
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	var all errgroup.Group
	all.SetLimit(reachAtOnce)
	for _, i := range order {
		all.Go(func() error { f(i); return nil })
	}
	all.Wait()
}

func tryOne(ctx context.Context, p peerAddress, t *answer.Tried, try func(context.Context, peerAddress, *answer.Tried) error) {
	t.Network = p.network
	if !p.address.IsValid() {
		t.Error = "no address of it is known: its gateways have to dial here"
		return
	}
	t.Address = p.address.String()
	if ctx.Err() != nil {
		t.Undialled, t.Error = true, fmt.Sprintf("not dialed: other addresses took all of %v", reachAll)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := try(ctx, p, t); err != nil {
		t.Error = err.Error()
	}
}

// clientTLS returns the TLS configuration of a client of p, and the names of the current gateways of its
// network.
func (g *Gateway) clientTLS(ctx context.Context, p peerAddress) (cfg *tls.Config, names []string, err error) {
	if g.fed != nil {
		g.fed.Read(func(l *ledger.Ledger) {
			for _, s := range l.Status() {
				if name := s.Network + "/" + s.Gateway; s.Network == p.network && s.Phase == ledger.Live && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		})
	}
	cfg, err = g.ids.ClientTLS(ctx, g.self.Identity, []spiffeid.ID{p.identity}, hbone.ClientProtocols(names...)...)
	return cfg, names, err
}

// dialPeer connects to p as node proxies do, with segments of at most maxSegment bytes. 0 means as
// configured.
func (g *Gateway) dialPeer(ctx context.Context, p peerAddress, maxSegment int) (net.Conn, error) {
	line := g.line
	line.MaxSegment = cmp.Or(maxSegment, line.MaxSegment)
	d := net.Dialer{Timeout: g.cfg.Timeouts.Dial, Control: line.Control}
	return d.DialContext(ctx, "tcp", p.address.String())
}

// target returns p as the target of a path check.
func (g *Gateway) target(p peerAddress) pathcheck.Target {
	return pathcheck.Target{
		Dial: func(ctx context.Context, maxSegment int) (net.Conn, error) { return g.dialPeer(ctx, p, maxSegment) },
		TLS: func(ctx context.Context, conn net.Conn) (*hbone.TLSTransport, error) {
			cfg, _, err := g.clientTLS(ctx, p)
			if err != nil {
				conn.Close()
				return nil, err
			}
			return hbone.ClientTLS(ctx, conn, cfg)
		},
	}
}

// measure stores in t what the path to p is like: over TCP, and beside it over UDP if this gateway has
// lines.transport quic or auto for its network.
func (g *Gateway) measure(ctx context.Context, p peerAddress, t *answer.Tried) {
	var udp sync.WaitGroup
	if g.cfg.Lines.TransportTo(p.network) != lines.TCP && t.Error == "" {
		udp.Go(func() { g.checkUDP(ctx, p, t) })
	}
	var err error
	if t.Path, err = g.target(p).Measure(ctx); err != nil {
		t.PathError = err.Error()
	}
	udp.Wait()
}

// checkUDP stores in t the result of a QUIC handshake with p at each address for QUIC.
func (g *Gateway) checkUDP(ctx context.Context, p peerAddress, t *answer.Tried) {
	cfg, _, err := g.clientTLS(ctx, p)
	if err != nil {
		t.UDPError = err.Error()
		return
	}
	at, err := g.resolveQUIC(ctx, p)
	results, errs := make([]*answer.UDP, len(at)), make([]error, len(at))
	var all sync.WaitGroup
	for i, a := range at {
		all.Go(func() {
			if results[i], errs[i] = pathcheck.QUIC(ctx, a, cfg); errs[i] == nil && a != p.address {
				results[i].Address = a.String()
			}
		})
	}
	all.Wait()
	t.UDP = slices.DeleteFunc(results, func(u *answer.UDP) bool { return u == nil })
	if err := errors.Join(append(errs, err)...); err != nil {
		t.UDPError = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
}

// resolveQUIC returns the addresses of p for QUIC, and why some cannot be dialed.
func (g *Gateway) resolveQUIC(ctx context.Context, p peerAddress) (at []netip.AddrPort, err error) {
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	for _, h := range p.quic {
		host, port, wrong := hostport.Split(h)
		var found []netip.Addr
		if ip, notIP := netip.ParseAddr(host); wrong == nil && notIP == nil {
			found = append(found, ip)
		} else if wrong == nil {
			found, _, wrong = g.doors.lookup(ctx, host)
		}
		err = errors.Join(err, wrong)
		for _, ip := range found[:min(len(found), maxDoorAddresses)] {
			a := netip.AddrPortFrom(ip.Unmap(), port)
			if why := discovery.NotElsewhere(g.store.Current(), g.cfg.Network, a); p.published && why != "" {
				err = errors.Join(err, fmt.Errorf("its UDP address %s %s", a, why))
			} else if !slices.Contains(at, a) {
				at = append(at, a)
			}
		}
	}
	return at, err
}

// measureFlow stores the throughput to p in path.
func (g *Gateway) measureFlow(ctx context.Context, p peerAddress, path *answer.Path) {
	ctx, cancel := context.WithTimeout(ctx, flowTime)
	defer cancel()
	var err error
	if path.BitsPerSecond, err = g.target(p).Throughput(ctx, path.MaxSegment); err != nil {
		path.Note = "throughput not measured: " + err.Error()
	}
}

// tryTunnel opens a tunnel to p and records in t each step that succeeds.
func (g *Gateway) tryTunnel(ctx context.Context, p peerAddress, t *answer.Tried) error {
	cfg, names, err := g.clientTLS(ctx, p)
	if err != nil {
		return err
	}
	conn, err := g.dialPeer(ctx, p, 0)
	if err != nil {
		return err
	}
	t.Connected = true
	transport, err := hbone.ClientTLS(ctx, conn, cfg)
	if err != nil {
		return err
	}
	t.Identity = p.identity.String()
	t.Expires = transport.ConnectionState().PeerCertificates[0].NotAfter
	if i := slices.IndexFunc(names, func(n string) bool { return hbone.ReplicaProtocol(n) == transport.Protocol() }); i >= 0 {
		t.Gateway = names[i]
	}
	session, err := hbone.NewClient(ctx, transport, hbone.DefaultConfig())
	if err != nil {
		return err
	}
	defer session.Close(nil)
	began := time.Now()
	stream, _, err := session.Open(ctx, &hbone.Request{Authority: header.CheckAuthority})
	if stream != nil {
		stream.Close()
	}
	var answered *hbone.StatusError
	switch {
	case errors.As(err, &answered) && answered.Status == http.StatusNotFound:
		t.RTTMS = float64(time.Since(began).Microseconds()) / 1000
		return nil
	case err == nil:
		return fmt.Errorf("it opens a tunnel to %s: it is not a gateway of this mesh", header.CheckAuthority)
	}
	return err
}
