package nodeproxy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/hbone/header"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/picker"
	"github.com/isthmus-mesh/isthmus/nodeproxy/pods"
)

// state is the admin dump: what decisions are made from.
type state struct {
	Node       string                  `json:"node"`             // node of the node proxy
	Network    string                  `json:"network"`          // network of the process
	Revision   uint64                  `json:"revision"`         // of the snapshot in use; see discovery.revision
	Discovery  file.Status             `json:"discovery"`        // state of the discovery file
	Told       *toldState              `json:"told,omitempty"`   // without a discovery file: discovery data from this network's gateways
	Identities []identity.Status       `json:"identities"`       // identities that the process needs
	Draining   bool                    `json:"draining"`         // it is stopping and finishes open connections
	Attached   int                     `json:"attachedGateways"` // gateways of this network with an open health stream
	Local      []localBelief           `json:"localEndpoints"`   // ports of local pods that failed since this process started, as its own witness saw them
	Pods       []podBelief             `json:"ownNetwork"`       // pods of this network, by service and port: observations of this node proxy alone, and the result
	Shares     []shareBelief           `json:"networkServices"`  // remote services, by port
	Gateways   []gateBelief            `json:"gateways"`         // gateways of other networks
	Warm       []warmBelief            `json:"warmSets"`         // preconnect pools: one for each source identity, remote service and port in use
	Captured   []pods.Belief           `json:"captured"`         // local pods that are captured, or cannot be
	Services   []healthstream.Followed `json:"followedServices"` // reports of this network's gateways about the services that local pods use
}

// podBelief is what this client has seen of one pod of its own network.
//
// Phase is that evidence alone; a pod is left out by it or by what its own side
// reports, and Usable is what comes of both.
type podBelief struct {
	Service  string    `json:"service"`               // hostname
	Endpoint string    `json:"endpoint"`              // endpoint ID in headers and logs
	Workload string    `json:"workload"`              // workload UID
	Port     uint16    `json:"port"`                  // target port
	Usable   bool      `json:"usable"`                // eligible for new connections; if no candidate is, panic mode
	Reported string    `json:"reported"`              // health reported by gateways: healthy, ejected, or unknown (usable)
	Phase    string    `json:"phase"`                 // observed by this node proxy: healthy, ejected or probing
	Health   float64   `json:"health"`                // score of phase, 0 to 1
	Until    time.Time `json:"ejectedUntil,omitzero"` // next attempt at the latest; an answered probe ends the wait early
	Open     int       `json:"open"`                  // open connections
	OutFor   []string  `json:"outFor,omitempty"`      // UIDs of captured pods that do not reach it; it is ejected for their connections alone
}

// shareBelief is what this client believes of one network service.
type shareBelief struct {
	Network  string   `json:"network"`    // network of the remote service
	Service  string   `json:"service"`    // hostname
	Port     uint16   `json:"port"`       // service port
	Usable   bool     `json:"usable"`     // eligible for new connections; if no candidate is, panic mode
	Known    bool     `json:"known"`      // a report was received
	Ready    uint32   `json:"ready"`      // ready endpoints, as reported
	Healthy  uint32   `json:"healthy"`    // healthy ones of these, as reported
	Phase    string   `json:"phase"`      // observed by this node proxy: healthy, ejected or probing
	Open     int      `json:"open"`       // open connections
	Excepted []string `json:"exceptions"` // ready endpoints that are ejected, as reported
	Hints    []string `json:"ownHints"`   // endpoints that failed for this node proxy: sent to the gateway as advice
}

// warmBelief is one warm set.
type warmBelief struct {
	Source   string         `json:"source"`         // SPIFFE ID of its client pods
	From     string         `json:"from,omitempty"` // UID of its only client, a captured pod
	Network  string         `json:"network"`        // network of the remote service
	Service  string         `json:"service"`        // hostname
	Port     uint16         `json:"port"`           // service port
	Wanted   int            `json:"wanted"`         // sessions wanted for its connections per second, at most one for each eligible endpoint
	Held     int            `json:"held"`           // open sessions, each with one endpoint
	Opening  int            `json:"opening"`        // sessions being opened
	Whole    bool           `json:"everybody"`      // one session with each endpoint; otherwise the sessions rotate among the endpoints
	Open     int            `json:"open"`           // open connections
	Gateways []warmSessions `json:"perGateway"`     // open sessions, by gateway
}

type warmSessions struct {
	Gateway  string `json:"gateway"`  // name and address
	Sessions int    `json:"sessions"` // open sessions through it
}

func (p *Proxy) warmSets(service string) []warmBelief {
	out := []warmBelief{}
	for _, s := range p.kept.Status() {
		if service != "" && s.Service != service {
			continue
		}
		w := warmBelief{Source: s.Source.String(), From: s.From, Network: s.Network, Service: s.Service, Port: s.Port, Wanted: s.Wanted, Held: s.Held,
			Opening: s.Opening, Whole: s.Whole, Open: s.Open, Gateways: []warmSessions{}}
		for _, g := range slices.Sorted(maps.Keys(s.By)) {
			w.Gateways = append(w.Gateways, warmSessions{g, s.By[g]})
		}
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b warmBelief) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Network, b.Network), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Source, b.Source), cmp.Compare(a.From, b.From))
	})
	return out
}

type gateBelief struct {
	Network string    `json:"network"`               // network of the gateway
	Name    string    `json:"name"`                  // name in discovery
	Address string    `json:"address"`               // address that it listens on
	Phase   string    `json:"phase"`                 // healthy, ejected or probing
	Health  float64   `json:"health"`                // score, 0 to 1
	Until   time.Time `json:"ejectedUntil,omitzero"` // next attempt at the latest; an answered probe ends the wait early
	Open    int       `json:"open"`                  // open connections
}

func (p *Proxy) dump(service string) (any, error) {
	snap := p.store.Current()
	var only *mesh.Service
	if service != "" {
		if only = snap.Service(service); only == nil {
			return nil, fmt.Errorf("service: %q: discovery lists no service of this hostname or alias", service)
		}
	}
	s := state{Node: p.cfg.Node, Network: p.cfg.Network, Revision: snap.Revision, Discovery: p.watcher.Status(), Told: p.own.state(p.ownGateways()), Identities: p.ids.Status(), Draining: p.draining.Load(),
		Local: p.witness.dump(), Captured: p.pods.Dump(), Services: []healthstream.Followed{}}
	if p.stream != nil {
		s.Attached, s.Services = p.stream.Attached(), p.stream.Followed()
	}
	p.view.dump(&s, snap, only, time.Now())
	hostname := ""
	if only != nil {
		hostname = only.Hostname
	}
	s.Warm = p.warmSets(hostname)
	if only != nil {
		member := func(endpoint string) bool {
			w := snap.WorkloadByEndpoint(mesh.EndpointID(header.ParseEndpoint(endpoint)))
			return w != nil && slices.Contains(snap.ServicesOf(w.UID), only)
		}
		s.Local = slices.DeleteFunc(s.Local, func(l localBelief) bool { return !member(l.Endpoint) })
		s.Services = slices.DeleteFunc(s.Services, func(f healthstream.Followed) bool { return f.Service != only.Hostname })
	}
	return s, nil
}

func (v *view) dump(s *state, snap *mesh.Snapshot, only *mesh.Service, now time.Time) {
	s.Pods, s.Shares, s.Gateways = []podBelief{}, []shareBelief{}, []gateBelief{}
	for _, svc := range snap.Services() {
		if only != nil && svc != only {
			continue
		}
		for _, port := range svc.Ports {
			for _, w := range snap.Members(svc, v.network) {
				s.Pods = append(s.Pods, v.dumpPod(w, svc, port, now))
			}
			for _, n := range snap.Networks(svc) {
				if n != v.network && svc.Exported() && offered(snap, svc, n, port.Service) {
					s.Shares = append(s.Shares, v.dumpShare(picker.Share{Network: n, Service: svc.Hostname, Port: port.Service}, now))
				}
			}
		}
	}
	for _, n := range snap.GatewayNetworks() {
		for _, g := range snap.Gateways(n) {
			if n != v.network {
				b := v.GatewayBelief(picker.GatewayKey(g), now)
				s.Gateways = append(s.Gateways, gateBelief{Network: n, Name: g.Name, Address: g.Address.String(), Phase: b.Phase.String(), Health: b.Health, Until: b.Until, Open: b.Open})
			}
		}
	}
}

func (v *view) dumpPod(w *mesh.Workload, svc *mesh.Service, port mesh.Port, now time.Time) podBelief {
	k := health.Key{Endpoint: w.Endpoint, Port: w.Target(port)}
	b := v.PodBelief(k, now)
	reported, out := "unknown", false
	if f, ok := v.reported(picker.Share{Network: v.network, Service: svc.Hostname, Port: port.Service}); ok {
		if reported, out = "healthy", slices.Contains(f.Exceptions, w.Endpoint); out {
			reported = "ejected"
		}
	}
	return podBelief{Service: svc.Hostname, Usable: w.State == mesh.Ready && !out && b.Usable, Reported: reported, Endpoint: w.Endpoint.String(), Workload: w.UID,
		Port: k.Port, Phase: b.Phase.String(), Health: b.Health, Until: b.Until, Open: b.Open, OutFor: v.OutFor(k, now)}
}

func (v *view) dumpShare(k picker.Share, now time.Time) shareBelief {
	f, ok := v.reported(k)
	b := v.ShareBelief(k, now)
	return shareBelief{
		Usable:  b.Usable && (!ok || f.Healthy > 0 && !f.Draining),
		Network: k.Network, Service: k.Service, Port: k.Port, Known: ok, Ready: f.Ready, Healthy: f.Healthy,
		Phase: b.Phase.String(), Open: b.Open, Excepted: hexes(f.Exceptions), Hints: hexes(v.Hints(k)),
	}
}

func hexes(ids []mesh.EndpointID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}
