package gateway

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/ledger"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/health/standing"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/buildinfo"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/route"
)

// Endpoints are what the admin port answers about decisions.
func (g *Gateway) Endpoints() []admin.Endpoint {
	out := []admin.Endpoint{
		{Pattern: "GET /explain", Doc: "why each pod of ?destination=<hostname>:<port> is in or out; the same for every ?source=", Handler: admin.Only(g.explain, "source", "destination")},
		{Pattern: "GET /status", Doc: "what is known of the health of this network's services, by port", Handler: admin.Only(g.status)},
		{Pattern: "GET /reach", Doc: "dials the gateways of other networks now, opens a tunnel at each address and measures the path: round trip, loss, packet size; with ?path=<network> also two seconds of throughput to that network", Handler: admin.Only(g.reach, "path")},
	}
	if g.kube != nil {
		out = append(out, admin.Endpoint{Pattern: "POST /kubernetes/confirm", Doc: "believe that what is held as ?id= is gone from the Kubernetes cluster", Handler: admin.Only(g.confirmKubernetes, "id")})
	}
	return out
}

func (g *Gateway) explain(w http.ResponseWriter, r *http.Request) {
	destination, now := r.URL.Query().Get("destination"), time.Now()
	snap := g.store.Current()
	e := answer.Explanation{Process: "gateway " + g.cfg.Name, Network: g.cfg.Network, Destination: destination, Now: now, Candidates: []answer.Verdict{}}
	s, err := g.backends.Resolve(snap, canonicalDestination(snap, destination), now)
	if re, ok := err.(*route.Error); ok && re.Kind == route.BadAuthority {
		admin.Fail(w, http.StatusBadRequest, fmt.Errorf("destination: %q: %s: write host:port, for example hello.default.svc.cluster.local:80", destination, re.Detail))
		return
	}
	if err != nil {
		e.Refused, e.NotCarried = err.Error(), g.hasNoPartOf(snap, destination)
		if re, ok := err.(*route.Error); ok && re.Kind == route.UnknownService {
			host, _, _ := net.SplitHostPort(destination)
			e.Refused += ": " + strictyaml.Suggest(host, namesOf(snap))
		}
	} else {
		for _, v := range g.backends.Explain(s, now) {
			if w := snap.Workload(v.Name); w != nil {
				v.Pod = w.PodName()
			}
			e.Candidates = append(e.Candidates, answer.Verdict{Verdict: v})
		}
	}
	admin.Answer(w, http.StatusOK, e)
}

// canonicalDestination translates a host NAME.NAMESPACE.svc.DOMAIN that is unknown, of whatever
// domain, into the canonical name of the service: a gateway does not know the cluster's domain.
func canonicalDestination(snap *mesh.Snapshot, destination string) string {
	host, port, err := net.SplitHostPort(destination)
	if err != nil || snap.Service(host) != nil {
		return destination
	}
	if _, domain, ok := strings.Cut(host, ".svc."); ok {
		host = mesh.CanonicalHost(host, domain)
	}
	return net.JoinHostPort(host, port)
}

func namesOf(snap *mesh.Snapshot) (names []string) {
	for _, s := range snap.Services() {
		names = append(append(names, s.Hostname), s.Aliases...)
	}
	return names
}

// hasNoPartOf reports whether discovery knows the service of destination, and no
// workload of it on this network.
func (g *Gateway) hasNoPartOf(snap *mesh.Snapshot, destination string) bool {
	host, _, err := net.SplitHostPort(destination)
	if err != nil {
		return false
	}
	svc := snap.Service(host)
	return svc != nil && !slices.Contains(snap.Networks(svc), g.cfg.Network)
}

// status lists the services of this network.
func (g *Gateway) status(w http.ResponseWriter, _ *http.Request) {
	snap, now := g.store.Current(), time.Now()
	s := answer.Status{Process: "gateway " + g.cfg.Name, Network: g.cfg.Network, Version: buildinfo.Version(), Now: now, Services: []answer.Row{}, Gateways: []answer.Gateway{}, Local: []standing.Out{},
		Warnings: g.warnings(snap), Unrouted: discovery.OnLoopback(snap, ""), Pending: g.pending(), Problems: slices.Concat(g.watcher.Status().Findings(), g.unfollowed(), g.unreachable(), g.disbelieved(), g.unpublished(), g.unheard()), Heard: g.heard(), Keys: g.keysOf(), Known: g.believed(), Group: g.cfg.Federation.Group}
	if d, err := keyfile.Open(g.cfg.Federation.Keys); err == nil && g.fed != nil {
		s.Rotation, s.RotationNext = d.Step().String(), d.Remaining()
		if d.NextError != nil {
			s.Problems = append(s.Problems, "rotation of the network's key: "+d.NextError.Error())
		}
	}
	if len(s.Pending) == 0 { // until then networks may be missing
		known := snap.AllNetworks()
		for _, k := range s.Known {
			known = append(known, k.Network)
		}
		s.Problems = append(s.Problems, g.cfg.Lines.Unknown(g.cfg.Network, known)...)
	}
	for _, svc := range snap.Services() {
		members := snap.Members(svc, g.cfg.Network)
		if len(members) == 0 {
			continue
		}
		for _, port := range svc.Ports {
			s.Services = append(s.Services, answer.Row{Row: g.statusOf(svc, port, members, now), NoPod: !slices.ContainsFunc(members, func(w *mesh.Workload) bool { return !w.Plain })})
		}
	}
	slices.SortStableFunc(s.Services, func(a, b answer.Row) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port))
	})
	admin.Answer(w, http.StatusOK, s)
}

// warnings says which policies do not do what they were written for. A gateway knows all that policies of its network are for, once it has
// read its cluster.
func (g *Gateway) warnings(snap *mesh.Snapshot) []string {
	if g.kube != nil && !g.kube.Status().Synced {
		return nil
	}
	unmatched, pointing := snap.UnmatchedPolicies(), snap.PointingPolicies(g.ids.Believes())
	if g.kube != nil { // there may be policies for whoever will come
		return answer.PolicyWarnings(unmatched, nil, pointing)
	}
	return answer.PolicyWarnings(append(unmatched, snap.DesertedPolicies()...), snap.MisportedPolicies(), pointing)
}

// statusOf is what this gateway can deliver of a service's port, by the same reckoning
// as what it tells others.
func (g *Gateway) statusOf(svc *mesh.Service, port mesh.Port, members []*mesh.Workload, now time.Time) standing.Row {
	var x delivery
	x.look(basis{svc, members}, port, g.backends.podHealth, g.backends.podDetail, now)
	row := standing.Row{Network: g.cfg.Network, Service: svc.Hostname, Port: port.Service, Ready: x.fact.Ready, Healthy: x.fact.Healthy, Out: []standing.Out{}}
	for _, w := range members {
		if !x.members[w.Endpoint].offered {
			continue
		}
		if _, _, seen := g.backends.podHealth(w, w.Target(port), now); seen.After(row.Changed) {
			row.Changed = seen
		}
		if _, left := slices.BinarySearch(x.fact.Exceptions, w.Endpoint); !left {
			continue
		}
		out := standing.Out{Endpoint: w.UID, Pod: w.PodName(), Reason: "unreachable", Witness: "gateway " + g.cfg.Name, Since: g.backends.Hop(w.Endpoint, now).Turned}
		if word, sick := g.backends.Word(health.Key{Endpoint: w.Endpoint, Port: w.Target(port)}); sick {
			out.Reason, out.Witness, out.Since = word.Reason, word.Witness, word.Since
		}
		row.Out = append(row.Out, out)
	}
	return row
}

// unheard says of which nodes this gateway has no node proxy's word.
func (g *Gateway) unheard() []string {
	if g.fed == nil {
		return nil
	}
	nodes := g.unattached()
	if len(nodes) == 0 {
		return nil
	}
	named := strings.Join(nodes[:min(len(nodes), unheardNamed)], ", ")
	if more := len(nodes) - unheardNamed; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return []string{fmt.Sprintf("no health stream from the node proxy of %s: whether applications of its pods answer is not known here", named)}
}

// unheardNamed is how many nodes are named that are not heard of.
const unheardNamed = 16

// heard is how this gateway hears the others, and itself not.
func (g *Gateway) heard() (out []answer.Heard) {
	if g.fed == nil {
		return nil
	}
	g.fed.Read(func(l *ledger.Ledger) {
		for _, s := range l.Status() {
			if s.Own {
				continue
			}
			h := answer.Heard{Network: s.Network, Gateway: s.Gateway, Instance: s.Instance.String(), Phase: s.Phase.String(), At: s.Heard, Key: s.By.Fingerprint()}
			if s.Body != nil {
				h.Group = s.Body.Group
			}
			out = append(out, h)
		}
	})
	return out
}

// believed are the keys of other networks.
func (g *Gateway) believed() (out []answer.Known) {
	if g.fed == nil {
		return nil
	}
	for _, n := range g.fed.KnownNetworks() {
		if n == g.cfg.Network {
			continue
		}
		k := answer.Known{Network: n}
		for _, p := range g.fed.KnownKeys(n) {
			k.Fingerprints = append(k.Fingerprints, p.Fingerprint())
		}
		out = append(out, k)
	}
	return out
}

// keysOf are the keys of the own network, the one that signs first.
func (g *Gateway) keysOf() (out []answer.Key) {
	if g.fed == nil {
		return nil
	}
	for i, k := range g.fed.NetworkKeys() {
		out = append(out, answer.Key{Fingerprint: k.Fingerprint(), Signs: i == 0})
	}
	return out
}
