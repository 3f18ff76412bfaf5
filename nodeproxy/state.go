package nodeproxy

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/balance"
	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// state is the admin dump: what decisions are made from.
type state struct {
	Node       string            `json:"node"`             // of this node proxy
	Network    string            `json:"network"`          // this process's own
	Revision   uint64            `json:"revision"`         // of the snapshot that decisions are made from; see discovery.revision
	Discovery  file.Status       `json:"discovery"`        // how the discovery file stands
	Identities []identity.Status `json:"identities"`       // those that this process needs
	Draining   bool              `json:"draining"`         // it was told to stop, and finishes what is open
	Attached   int               `json:"attachedGateways"` // gateways of this network that a health stream is open to
	Local      []localBelief     `json:"localEndpoints"`   // ports of local pods that have failed since this process started, as witnessed
	Pods       []podBelief       `json:"ownNetwork"`       // pods of this network, by service and port: evidence of this client alone, and what comes of it
	Shares     []shareBelief     `json:"networkServices"`  // shares of services on other networks, by port
	Gateways   []gateBelief      `json:"gateways"`         // of other networks
	Records    []peer.View       `json:"records"`          // what is believed of endpoints and network services, by whose word
}

// podBelief is what this client has seen of one pod of its own network.
//
// Phase is that evidence alone; a pod is left out by it or by what its own side
// reports, and Usable is what comes of both.
type podBelief struct {
	Service  string    `json:"service"`               // hostname
	Endpoint string    `json:"endpoint"`              // its name in headers and logs
	Workload string    `json:"workload"`              // its UID
	Port     uint16    `json:"port"`                  // target port
	Usable   bool      `json:"usable"`                // chosen for a new connection, as long as any is
	Reported string    `json:"reported"`              // healthy, ejected, or unknown, which is usable
	Phase    string    `json:"phase"`                 // what this client has seen itself: healthy, ejected or probing
	Health   float64   `json:"health"`                // score of the same, 0 to 1
	Until    time.Time `json:"ejectedUntil,omitzero"` // end of the wait after which it is tried again at the latest; a probe that is answered ends it early
	Open     int       `json:"open"`                  // connections now
}

// shareBelief is what this client believes of one network service.
type shareBelief struct {
	Network  string   `json:"network"`    // where the share is
	Service  string   `json:"service"`    // hostname
	Port     uint16   `json:"port"`       // service port
	Usable   bool     `json:"usable"`     // chosen for a new connection, as long as any is
	Known    bool     `json:"known"`      // by the word of its owner
	Ready    uint32   `json:"ready"`      // endpoints, by the word of its owner
	Healthy  uint32   `json:"healthy"`    // of these, by the word of its owner
	Phase    string   `json:"phase"`      // what this client has seen itself: healthy, ejected or probing
	Open     int      `json:"open"`       // connections now
	Excepted []string `json:"exceptions"` // endpoints that are ready and left out, by the word of its owner
	Hints    []string `json:"ownHints"`   // endpoints that this client has seen fail itself: advice to the gateway
}

type gateBelief struct {
	Network string    `json:"network"`               // whose gateway it is
	Name    string    `json:"name"`                  // in discovery
	Address string    `json:"address"`               // where it listens
	Phase   string    `json:"phase"`                 // healthy, ejected or probing
	Health  float64   `json:"health"`                // score, 0 to 1
	Until   time.Time `json:"ejectedUntil,omitzero"` // end of the wait after which it is tried again at the latest; a probe that is answered ends it early
	Open    int       `json:"open"`                  // connections now
}

func (p *Proxy) dump(service string) (any, error) {
	snap := p.store.Current()
	var only *mesh.Service
	if service != "" {
		if only = snap.Service(service); only == nil {
			return nil, fmt.Errorf("service: %q: discovery lists no service of this hostname or alias", service)
		}
	}
	s := state{Node: p.cfg.Node, Network: p.cfg.Network, Revision: snap.Revision, Discovery: p.watcher.Status(), Identities: p.ids.Status(), Draining: p.draining.Load(),
		Local: p.witness.dump(), Records: p.ledger.Snapshot()}
	if p.stream != nil {
		s.Attached = p.stream.Attached()
	}
	p.view.dump(&s, snap, only, time.Now())
	if only != nil {
		member := func(endpoint string) bool {
			w := snap.WorkloadByEndpoint(mesh.EndpointID(header.ParseEndpoint(endpoint)))
			return w != nil && slices.Contains(snap.ServicesOf(w.UID), only)
		}
		s.Local = slices.DeleteFunc(s.Local, func(l localBelief) bool { return !member(l.Endpoint) })
		s.Records = slices.DeleteFunc(s.Records, func(v peer.View) bool {
			if v.Summary != nil {
				return v.Summary.Service != only.Hostname
			}
			return !member(v.Endpoint.Endpoint.String())
		})
	}
	return s, nil
}

func (v *view) dump(s *state, snap *mesh.Snapshot, only *mesh.Service, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s.Pods, s.Shares, s.Gateways = []podBelief{}, []shareBelief{}, []gateBelief{}
	for _, svc := range snap.Services() {
		if only != nil && svc != only {
			continue
		}
		for _, port := range svc.Ports {
			for _, w := range snap.Members(svc, v.network) {
				k := health.Key{Endpoint: w.Endpoint, Port: w.Target(port)}
				st := v.pods.State(k, now)
				reported, out := "unknown", false
				if f, ok := v.reported(share{v.network, svc.Hostname, port.Service}); ok {
					if reported, out = "healthy", slices.Contains(f.Exceptions, w.Endpoint); out {
						reported = "ejected"
					}
				}
				s.Pods = append(s.Pods, podBelief{Service: svc.Hostname, Usable: w.State == mesh.Ready && !out && v.pods.Usable(k, now), Reported: reported, Endpoint: w.Endpoint.String(), Workload: w.UID, Port: k.Port, Phase: st.Phase.String(), Health: st.Health, Until: st.Until, Open: v.open[k]})
			}
			for _, n := range snap.Networks(svc) {
				if n != v.network && svc.Exported() {
					s.Shares = append(s.Shares, v.dumpShare(share{n, svc.Hostname, port.Service}, now))
				}
			}
		}
	}
	for _, n := range snap.GatewayNetworks() {
		for _, g := range snap.Gateways(n) {
			if n != v.network {
				st := v.gateways.State(gatewayKey(g), now)
				s.Gateways = append(s.Gateways, gateBelief{Network: n, Name: g.Name, Address: g.Address.String(), Phase: st.Phase.String(), Health: st.Health, Until: st.Until, Open: v.open[gatewayKey(g)]})
			}
		}
	}
}

func (v *view) dumpShare(k share, now time.Time) shareBelief {
	f, ok := v.reported(k)
	return shareBelief{
		Usable:  v.shares.Usable(k, now) && (!ok || f.Healthy > 0 && !f.Draining),
		Network: k.network, Service: k.service, Port: k.port, Known: ok, Ready: f.Ready, Healthy: f.Healthy,
		Phase: v.shares.State(k, now).Phase.String(), Open: v.open[k], Excepted: hexes(f.Exceptions),
		Hints: hexes(v.hints.Known(health.HintService{Network: k.network, Service: k.service, Port: k.port})),
	}
}

func hexes(ids []mesh.EndpointID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// forget drops what concerns pods, services and gateways that are gone.
func (v *view) forget(snap *mesh.Snapshot, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	known := func(k health.Key) bool {
		w := snap.WorkloadByEndpoint(k.Endpoint)
		return w != nil && snap.Declares(w.UID, k.Port)
	}
	v.pods.Prune(now, known)
	maps.DeleteFunc(v.failed, func(k health.Key, _ time.Time) bool { return !known(k) })
	v.shares.Prune(now, func(k share) bool { return snap.Service(k.service) != nil })
	v.gateways.Prune(now, func(k string) bool { return gatewayNamed(snap, k) != nil })
	authority := func(a string) bool {
		host, _, err := net.SplitHostPort(a)
		return err == nil && snap.Service(host) != nil
	}
	maps.DeleteFunc(v.dazed, func(a string, _ bool) bool { return !authority(a) })
	maps.DeleteFunc(v.draws, func(k any, _ *balance.Draws) bool {
		switch k := k.(type) {
		case share:
			return snap.Service(k.service) == nil
		case string: // an authority or a network
			return !authority(k) && len(snap.Gateways(k)) == 0
		}
		return true
	})
}

// gatewayNamed finds the gateway of a key network/name.
func gatewayNamed(snap *mesh.Snapshot, key string) *mesh.Gateway {
	network, name, _ := strings.Cut(key, "/")
	gs := snap.Gateways(network)
	if i := slices.IndexFunc(gs, func(g *mesh.Gateway) bool { return g.Name == name }); i >= 0 {
		return gs[i]
	}
	return nil
}
