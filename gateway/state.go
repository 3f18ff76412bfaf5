package gateway

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery/file"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/boundtoken"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// state is the admin dump: what decisions are made from.
type state struct {
	Name       string                `json:"name"`                // gateway name
	Network    string                `json:"network"`             // network of the process
	Revision   uint64                `json:"revision"`            // of the snapshot in use; see discovery.revision
	Discovery  file.Status           `json:"discovery"`           // state of the discovery file
	Kubernetes kube.Status           `json:"kubernetes,omitzero"` // state of the Kubernetes source; absent without discovery.kube
	Identities []identity.Status     `json:"identities"`          // identities that the process needs
	LameDuck   bool                  `json:"lameDuck"`            // it is stopping and still serves: see timeouts.lameDuck
	Draining   bool                  `json:"draining"`            // it is stopping and finishes open connections
	Pods       []podState            `json:"pods"`                // pods of this network, per discovery
	Nodes      []string              `json:"nodes"`               // names of nodes with an attached node proxy
	Proven     []healthstream.Proven `json:"proven"`              // how each attached node proxy proved its node
	Tokens     boundtoken.Status     `json:"tokens,omitzero"`     // state of proof by token; absent without discovery.kube
	Members    []string              `json:"members"`             // live and trusted gateways of the federation, network/name, including this one
	Instances  []instanceState       `json:"instances"`           // gateway instances of all networks, as received here
	Reports    []healthstream.Word   `json:"reports"`             // health reports of node proxies about their pods
	Sessions   int                   `json:"sessions"`            // sessions with clients, tunnels only
	Streams    int                   `json:"streams"`             // streams on them
}

// instanceState is what this gateway believes of one life of one gateway.
type instanceState struct {
	Instance     string   `json:"instance"`     // random, drawn at its start
	Network      string   `json:"network"`      // by its certificate
	Gateway      string   `json:"gateway"`      // its name, by its certificate
	Group        string   `json:"group"`        // group of gateways that reach the same pods, as reported by itself; empty if none
	Phase        string   `json:"phase"`        // pending, live, silent, lapsed or ignored
	Own          bool     `json:"own"`          // whether it is this process
	Synchronised bool     `json:"synchronised"` // it reports its full state, so a missing record is withdrawn
	Draining     bool     `json:"draining"`     // other gateways are preferred
	Complete     bool     `json:"complete"`     // all of its records were received
	Records      int      `json:"records"`      // number of its records
	Bytes        int      `json:"bytes"`        // size of its records
	HeardMS      int64    `json:"heardMs"`      // time since its last signed update
	Problems     []string `json:"problems"`     // unusable records and reached limits; for this process also what it cannot publish
}

func (g *Gateway) instances(now time.Time) []instanceState {
	out := []instanceState{}
	if g.fed == nil {
		return out
	}
	g.fed.Read(func(l *ledger.Ledger) {
		for _, s := range l.Status() {
			i := instanceState{Instance: s.Instance.String(), Network: s.Network, Gateway: s.Gateway, Phase: s.Phase.String(), Own: s.Own, Synchronised: s.Synchronised,
				Draining: s.Body != nil && s.Body.Draining, Complete: s.Complete, Records: s.Records, Bytes: s.Bytes, HeardMS: now.Sub(s.Heard).Milliseconds(), Problems: []string{}}
			if s.Body != nil {
				i.Group = s.Body.Group
			}
			for k, err := range s.Problems {
				i.Problems = append(i.Problems, k.String()+": "+err.Error())
			}
			slices.Sort(i.Problems)
			if s.MoreProblems > 0 {
				i.Problems = append(i.Problems, fmt.Sprintf("%d further records that cannot be used", s.MoreProblems))
			}
			if s.Refused != nil {
				i.Problems = append(i.Problems, s.Refused.Error())
			}
			out = append(out, i)
		}
	})
	for i := range out {
		if out[i].Own {
			out[i].Problems = append(out[i].Problems, g.unpublished()...)
		}
	}
	return out
}

// unpublishedNamed is how many records that are not published are shown each for itself.
const unpublishedNamed = 64

// unpublished says which words of this gateway nobody is told, and why.
func (g *Gateway) unpublished() []string {
	if g.fed == nil {
		return nil
	}
	var out []string
	unsaid := g.fed.Unpublished()
	for _, u := range unsaid[:min(len(unsaid), unpublishedNamed)] {
		out = append(out, "not published: "+u.Err.Error())
	}
	if more := len(unsaid) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("%d further records that are not published", more))
	}
	return out
}

// podState is what this gateway believes about one pod, at one instant.
type podState struct {
	Endpoint  string    `json:"endpoint"`                 // endpoint ID in headers and logs
	Workload  string    `json:"workload"`                 // workload UID
	State     string    `json:"state"`                    // state in discovery
	Hop       string    `json:"hop"`                      // the pod's node proxy, as observed by this gateway: healthy, ejected or probing
	HopHealth float64   `json:"hopHealth"`                // score of hop, 0 to 1
	Until     time.Time `json:"hopEjectedUntil,omitzero"` // end of the wait for the next probe
	Suspected bool      `json:"suspected"`                // slow to answer, and being probed
	Open      int       `json:"open"`                     // open connections, over all ports
	// Ports is each target port of the pod's services, and every port with open
	// connections.
	Ports map[string]portState `json:"ports"`
}

type portState struct {
	Services []string `json:"services"` // host:port of the services that lead here
	Witness  string   `json:"witness"`  // health reported by the witness; unknown is usable
	Usable   bool     `json:"usable"`   // eligible for new connections; if no pod is, panic mode
	Open     int      `json:"open"`     // open connections
}

func (g *Gateway) dump(service string) (any, error) {
	snap := g.store.Current()
	var only *mesh.Service
	if service != "" {
		if only = snap.Service(service); only == nil {
			return nil, fmt.Errorf("service: %q: discovery lists no service of this hostname or alias", service)
		}
	}
	clients := g.clients.Counts()
	s := state{Name: g.cfg.Name, Network: g.cfg.Network, Revision: snap.Revision, Discovery: g.watcher.Status(), Identities: g.ids.Status(), LameDuck: g.lame.Load() && !g.draining.Load(), Draining: g.draining.Load(),
		Pods: g.backends.dump(snap, only, time.Now()), Nodes: []string{}, Proven: []healthstream.Proven{}, Members: []string{}, Instances: g.instances(time.Now()), Reports: []healthstream.Word{},
		Sessions: g.sessions.Len(), Streams: clients.Streams}
	if g.kube != nil {
		s.Kubernetes, s.Tokens = g.kube.Status(), g.tokens.Status()
	}
	if g.fed != nil {
		s.Nodes, s.Proven, s.Members, s.Reports = g.nodes.Nodes(), g.nodes.Proven(), g.fed.Members(), reportsOf(snap, g.nodes.Words(), only)
	}
	return s, nil
}

// reportsOf returns those of reports that concern only, all of them if it is nil.
func reportsOf(snap *mesh.Snapshot, reports []healthstream.Word, only *mesh.Service) []healthstream.Word {
	if only == nil {
		return reports
	}
	return slices.DeleteFunc(reports, func(r healthstream.Word) bool {
		w := snap.WorkloadByEndpoint(r.Fact.Endpoint)
		return w == nil || !slices.Contains(snap.ServicesOf(w.UID), only)
	})
}

// dump describes the pods of this network, those of only unless it is nil.
func (b *backends) dump(s *mesh.Snapshot, only *mesh.Service, now time.Time) []podState {
	open := b.OpenAt()
	out := []podState{}
	for _, w := range s.Workloads() {
		services := s.ServicesOf(w.UID)
		if w.Network == b.network && (only == nil || slices.Contains(services, only)) {
			out = append(out, b.dumpPod(w, services, open[w.Endpoint], now))
		}
	}
	return out
}

func (b *backends) dumpPod(w *mesh.Workload, services []*mesh.Service, open map[uint16]int, now time.Time) podState {
	leads, offered := map[uint16][]string{}, map[uint16]bool{}
	for port := range open {
		leads[port] = []string{}
	}
	for _, svc := range services {
		for _, p := range svc.Ports {
			t := w.Target(p)
			if t == 0 {
				continue // the pod has no port of that name
			}
			leads[t] = append(leads[t], svc.Hostname+":"+strconv.Itoa(int(p.Service)))
			offered[t] = offered[t] || svc.Offer(p, []*mesh.Workload{w}).Has(w)
		}
	}
	hop := b.Hop(w.Endpoint, now)
	pod := podState{Endpoint: w.Endpoint.String(), Workload: w.UID, State: w.State.String(), Hop: hop.Phase.String(), HopHealth: hop.Health,
		Until: hop.Until, Suspected: hop.Doubted, Ports: map[string]portState{}}
	for port, services := range leads {
		usable := b.Usable(health.Key{Endpoint: w.Endpoint, Port: port}, now)
		pod.Ports[strconv.Itoa(int(port))] = portState{Services: services, Witness: b.witness(w.Endpoint, port), Usable: usable && offered[port], Open: open[port]}
		pod.Open += open[port]
	}
	return pod
}

// witness is what the witness beside a pod says of a port, as far as that counts.
func (b *backends) witness(id mesh.EndpointID, port uint16) string {
	f, _, ok := b.facts(b.network, id, port)
	if !ok {
		return "unknown"
	}
	return f.State.String()
}
