package nodeproxy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// tunnel is an open way to one application: bytes written to stream reach it.
type tunnel struct {
	stream   *hbone.Stream
	hop      *hbone.Session  // the outer one, or the only one
	endpoint mesh.EndpointID // zero when the far side does not say
	inner    *hbone.Session  // of a double tunnel, ended with it
}

// close ends what the tunnel alone used. The stream has ended or is reset.
func (t *tunnel) close() {
	t.stream.Close()
	if t.inner != nil {
		t.inner.Close(nil)
	}
}

// caller is who a tunnel is opened for: one application connection.
type caller struct {
	snap   *mesh.Snapshot
	source *mesh.Workload
	app    netip.AddrPort // the application's own address
	host   string         // the service's hostname, empty when pod-addressed
	trace  string         // traceparent, the same on both hops
}

func (p *Proxy) headers(c caller) hbone.Header {
	return hbone.Header{
		hbone.HeaderBaggage:     p.baggage(c.snap, c.source),
		hbone.HeaderForwarded:   hbone.Forwarded(c.app, c.host),
		hbone.HeaderTraceparent: c.trace,
	}
}

func (p *Proxy) baggage(snap *mesh.Snapshot, w *mesh.Workload) string {
	name := w.Name
	if svcs := snap.ServicesOf(w.UID); len(svcs) > 0 {
		name = svcs[0].Name
	}
	return hbone.Baggage{Cluster: w.Cluster, Namespace: w.Namespace, WorkloadType: "pod", Workload: w.Name, ServiceName: name,
		Region: w.Locality.Region, Zone: w.Locality.Zone}.String()
}

// openSingle opens a tunnel to a pod of the own network.
func (p *Proxy) openSingle(ctx context.Context, c caller, to *mesh.Workload, target uint16) (*tunnel, *failure) {
	addr := netip.AddrPortFrom(to.Addresses[0], hbonePort)
	key := p.poolKey(c.source, []spiffeid.ID{to.Identity}, addr, to.UID)
	req := &hbone.Request{Authority: netip.AddrPortFrom(to.Addresses[0], target).String(), Header: p.headers(c)}
	stream, _, err := p.pool.Open(ctx, key, p.dialer(c.source.Identity, []spiffeid.ID{to.Identity}, addr), req)
	if err != nil {
		return nil, innerAnswer(to.Endpoint, fmt.Errorf("pod %s at %s: %w", to.UID, addr, err))
	}
	return &tunnel{stream: stream, hop: stream.Session(), endpoint: to.Endpoint}, nil
}

// openDouble opens a tunnel through gw to whichever pod gw chooses, and inside
// it a tunnel to that pod.
func (p *Proxy) openDouble(ctx context.Context, c caller, gw *mesh.Gateway, authority string, expect []spiffeid.ID, avoid []mesh.EndpointID) (*tunnel, *failure) {
	outerHeader := p.headers(c)
	if len(avoid) > 0 {
		ids := make([]uint64, len(avoid))
		for i, id := range avoid {
			ids[i] = uint64(id)
		}
		outerHeader[hbone.HeaderAvoid] = hbone.FormatAvoid(ids)
	}
	key := p.poolKey(c.source, []spiffeid.ID{gw.Identity}, gw.Address, gatewayUID+gatewayKey(gw))
	dial := p.dialer(c.source.Identity, []spiffeid.ID{gw.Identity}, gw.Address)
	outer, answer, err := p.pool.Open(ctx, key, dial, &hbone.Request{Authority: authority, Header: outerHeader})
	if err != nil {
		return nil, outerAnswer(fmt.Errorf("gateway %s/%s at %s: %w", gw.Network, gw.Name, gw.Address, err))
	}
	endpoint := mesh.EndpointID(answer.Endpoint())
	inner, err := p.innerSession(ctx, c.source.Identity, expect, outer)
	if err != nil {
		outer.Close()
		f := innerAnswer(endpoint, fmt.Errorf("inner tunnel through gateway %s/%s: %w", gw.Network, gw.Name, err))
		if outer.Session().Err() != nil {
			f.at = atGateway // its session died, with this tunnel in it
		}
		return nil, f
	}
	innerHeader := p.headers(c)
	innerHeader[hbone.HeaderForwardedNetwork] = p.cfg.Network
	stream, answer, err := inner.Open(ctx, &hbone.Request{Authority: authority, Header: innerHeader})
	if err != nil {
		f := innerAnswer(endpoint, fmt.Errorf("through gateway %s/%s: %w", gw.Network, gw.Name, err))
		if outer.Session().Err() != nil {
			f.at = atGateway
		}
		inner.Close(nil)
		outer.Close()
		return nil, f
	}
	if id := mesh.EndpointID(answer.Endpoint()); id != 0 {
		endpoint = id
	}
	return &tunnel{stream: stream, hop: outer.Session(), endpoint: endpoint, inner: inner}, nil
}

// innerSession runs the second handshake inside an outer stream.
func (p *Proxy) innerSession(ctx context.Context, source spiffeid.ID, expect []spiffeid.ID, outer *hbone.Stream) (*hbone.Session, error) {
	cfg, err := p.ids.ClientTLS(ctx, source, expect, "h2")
	if err != nil {
		return nil, err
	}
	hctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Handshake)
	defer cancel()
	t, err := hbone.ClientTLS(hctx, outer, cfg)
	if err != nil {
		return nil, err
	}
	return hbone.NewClient(hctx, t, p.sessionConfig())
}

func (p *Proxy) sessionConfig() hbone.Config {
	c := hbone.DefaultConfig()
	c.MaxStreams = 100
	c.SettingsTimeout, c.ConnectTimeout = p.cfg.Timeouts.Handshake, p.cfg.Timeouts.Connect
	return c
}

// dialer returns how the pool opens one more session as source.
func (p *Proxy) dialer(source spiffeid.ID, expect []spiffeid.ID, addr netip.AddrPort) func(context.Context) (*hbone.Session, error) {
	return func(ctx context.Context) (*hbone.Session, error) {
		cfg, err := p.ids.ClientTLS(ctx, source, expect, "h2")
		if err != nil {
			return nil, err
		}
		d := net.Dialer{Timeout: p.cfg.Timeouts.Dial, KeepAlive: 180 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", addr.String())
		if err != nil {
			return nil, err
		}
		hctx, cancel := context.WithTimeout(ctx, p.cfg.Timeouts.Handshake)
		defer cancel()
		t, err := hbone.ClientTLS(hctx, conn, cfg)
		if err != nil {
			return nil, err
		}
		return hbone.NewClient(hctx, t, p.sessionConfig())
	}
}

// gatewayUID precedes a gateway's key where a pool wants a workload's UID.
const gatewayUID = "gateway/"

func (p *Proxy) poolKey(source *mesh.Workload, expect []spiffeid.ID, addr netip.AddrPort, uid string) hbone.PoolKey {
	names := make([]string, len(expect))
	for i, id := range expect {
		names[i] = id.String()
	}
	slices.Sort(names)
	return hbone.PoolKey{Source: source.Identity.String(), Expected: strings.Join(names, " "), Address: addr.String(), UID: uid}
}
