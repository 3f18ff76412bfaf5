package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// reachAuthority is what is asked for: nobody exports it (RFC 6761 keeps "invalid" for that),
// so that a gateway that has taken the request answers 404.
const reachAuthority = "check.isthmus.invalid:1"

const (
	// reachAtOnce are dialled at once.
	reachAtOnce = 16
	// reachTime bounds one attempt.
	reachTime = 4 * time.Second
	// reachAll bounds all of them: who asks waits half a minute.
	reachAll = 20 * time.Second
)

// peerAddress is where a gateway of another network is dialled, and whom it has to be.
type peerAddress struct {
	network  string
	identity spiffeid.ID
	address  netip.AddrPort // invalid: none is known
}

// peerAddresses are those of all other networks that are known now.
func (g *Gateway) peerAddresses() (list []peerAddress) {
	snap := g.store.Current()
	for _, network := range snap.GatewayNetworks() {
		for _, x := range snap.Gateways(network) {
			if network != g.cfg.Network {
				for _, a := range append([]netip.AddrPort{x.Address}, x.More...) {
					list = append(list, peerAddress{network, x.Identity, a})
				}
			}
		}
	}
	if g.doors != nil {
		for _, d := range g.doors.all() {
			for _, a := range d.Addresses {
				list = append(list, peerAddress{d.Network, d.Identity, a})
			}
			if len(d.Addresses) == 0 {
				list = append(list, peerAddress{d.Network, d.Identity, netip.AddrPort{}})
			}
		}
	}
	slices.SortFunc(list, func(a, b peerAddress) int {
		return cmp.Or(cmp.Compare(a.network, b.network), a.address.Compare(b.address), cmp.Compare(a.identity.String(), b.identity.String()))
	})
	return slices.Compact(list)
}

// reach dials the gateways of other networks, at each address that is known, and opens a
// tunnel as clients do, on a session of its own that ends with the answer: nothing of what is
// open already counts.
func (g *Gateway) reach(w http.ResponseWriter, r *http.Request) {
	out := answer.Reach{Process: "gateway " + g.cfg.Name, Network: g.cfg.Network, Tried: tryAll(r.Context(), g.peerAddresses(), g.tryTunnel)}
	admin.Answer(w, http.StatusOK, out)
}

// tryAll tries each address, a few at once and within reachAll: where many are silent, some
// are not dialled, and are said to be. Networks take turns, so that none is left out for
// another's addresses.
func tryAll(ctx context.Context, list []peerAddress, try func(context.Context, peerAddress, *answer.Tried) error) []answer.Tried {
	ctx, cancel := context.WithTimeout(ctx, reachAll)
	defer cancel()
	tried := make([]answer.Tried, len(list))
	next := make(chan int, len(list))
	for _, i := range byTurns(list) {
		next <- i
	}
	close(next)
	var all sync.WaitGroup
	for range min(reachAtOnce, len(list)) {
		all.Go(func() {
			for i := range next {
				tryOne(ctx, list[i], &tried[i], try)
			}
		})
	}
	all.Wait()
	return tried
}

func tryOne(ctx context.Context, p peerAddress, t *answer.Tried, try func(context.Context, peerAddress, *answer.Tried) error) {
	t.Network = p.network
	if !p.address.IsValid() {
		t.Error = "no address of it is known: its gateways have to dial here"
		return
	}
	t.Address = p.address.String()
	if ctx.Err() != nil {
		t.Undialled, t.Error = true, fmt.Sprintf("not dialled: other addresses took all of %v", reachAll)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := try(ctx, p, t); err != nil {
		t.Error = err.Error()
	}
}

// byTurns are the indices of a list that is sorted by network: the first of each network, then
// the second of each.
func byTurns(list []peerAddress) []int {
	turn, out := make([]int, len(list)), make([]int, len(list))
	for i := range list {
		if out[i] = i; i > 0 && list[i].network == list[i-1].network {
			turn[i] = turn[i-1] + 1
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(turn[a], turn[b]) })
	return out
}

// tryTunnel notes in t how far it comes.
func (g *Gateway) tryTunnel(ctx context.Context, p peerAddress, t *answer.Tried) error {
	var names []string
	if g.fed != nil {
		g.fed.Read(func(l *ledger.Ledger) {
			for _, s := range l.Status() {
				if name := s.Network + "/" + s.Gateway; s.Network == p.network && s.Phase == ledger.Live && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		})
	}
	cfg, err := g.ids.ClientTLS(ctx, g.self.Identity, []spiffeid.ID{p.identity}, hbone.ClientProtocols(names...)...)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: g.cfg.Timeouts.Dial}
	conn, err := d.DialContext(ctx, "tcp", p.address.String())
	if err != nil {
		return err
	}
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
	stream, _, err := session.Open(ctx, &hbone.Request{Authority: reachAuthority})
	if stream != nil {
		stream.Close()
	}
	var answered *hbone.StatusError
	switch {
	case errors.As(err, &answered) && answered.Status == http.StatusNotFound:
		t.RTTMS = float64(time.Since(began).Microseconds()) / 1000
		return nil
	case err == nil:
		return fmt.Errorf("it opens a tunnel to %s, which is nobody's: it is no gateway of this mesh", reachAuthority)
	}
	return err
}
