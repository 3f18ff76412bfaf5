package names

import (
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Zones are the zones of the mesh: nobody else has names in them.
var Zones = []string{"mesh.internal", "svc.clusterset.local"}

// clusterZone ends the canonical names of services, which the cluster resolves first.
const clusterZone = "svc." + mesh.CanonicalDomain

// view resolves the names of one pod by one snapshot.
type view struct {
	snap   *mesh.Snapshot
	search []string // of the pod
	domain string   // of the cluster's names; empty if unknown
}

// canonical returns host as the snapshot has it: a name in the domain of the cluster means the
// service of the canonical name, unless a service has that very name.
func (v view) canonical(host string) string {
	if c := mesh.CanonicalHost(host, v.domain); c != host {
		if _, has := v.find(host); !has {
			return c
		}
	}
	return host
}

// do is what becomes of a query.
type do uint8

const (
	pass    do = iota // the pod's resolver answers it
	answer            // it is answered here
	ask               // gateways are to be asked first
	contest           // the pod's resolver is asked, and believed unless it denies the name
)

// state is whether gateways were asked for a name.
type state uint8

const (
	unasked state = iota
	sure          // what they know of it is in the snapshot
	unsure        // nobody could say
)

// judgement is what becomes of a query, and why.
type judgement struct {
	do    do
	host  string // canonical name of the service, to subscribe to and to count as used
	asked string // the same name in the domain of the query; the target of SRV
	rcode int
	zone  string // that says so, of an answer without records
	entry entry
	port  *mesh.Port // of SRV; nil: the name is that of the service itself
	empty bool       // no record has the name
}

// judge says what becomes of a query for a name, in lower case and without a dot at the end.
func (v view) judge(name string, kind uint16, asked state) judgement {
	s := splitService(name)
	if zone := zoneOf(name); zone != "" {
		return v.inZone(s, zone, asked)
	}
	if zone := v.expanded(name); zone != "" {
		return judgement{do: answer, rcode: dns.RcodeNameError, zone: zone, empty: true}
	}
	s.host = v.canonical(s.host)
	e, has := v.find(s.host)
	if rest, in := strings.CutSuffix(s.host, "."+clusterZone); in {
		if strings.Count(rest, ".") == 1 || has {
			return judgement{do: contest, host: s.host}
		}
		return judgement{do: pass}
	}
	if has && len(e.addresses) > 0 {
		j := e.answer(s, s.host)
		if j.rcode == dns.RcodeSuccess && (j.port != nil && kind == dns.TypeSRV || j.port == nil && !j.empty && (kind == dns.TypeA || kind == dns.TypeAAAA)) {
			return j
		}
	}
	return judgement{do: pass}
}

// denied says what becomes of a query that judge contests, once the cluster has denied the name.
func (v view) denied(name string, asked state) judgement {
	s := splitService(name)
	s.host = v.canonical(s.host)
	e, has := v.find(s.host)
	switch {
	case has && len(e.addresses) > 0:
		return e.answer(s, s.asked)
	case asked == unasked:
		return judgement{do: ask, host: s.host}
	}
	return judgement{do: pass}
}

// inZone judges a name in a zone of the mesh.
func (v view) inZone(s service, zone string, asked state) judgement {
	e, has := v.find(s.host)
	if has && len(e.addresses) > 0 {
		return e.answer(s, zone)
	}
	rest := strings.TrimSuffix(strings.TrimSuffix(s.host, zone), ".")
	out := judgement{do: answer, host: s.host, zone: zone, empty: true}
	switch labels := labelsOf(rest); {
	case labels < 2 && s.plain():
		return out // a namespace, or the zone itself: there may be names below
	case labels == 2 && asked == unasked:
		return judgement{do: ask, host: s.host}
	case labels == 2 && asked == unsure:
		out.rcode = dns.RcodeServerFailure
	case has: // without an address nobody can be told where it is
		return e.answer(s, zone)
	default:
		out.rcode = dns.RcodeNameError
	}
	return out
}

// expanded returns the zone above name if that is a name of the mesh with a search domain of the pod
// behind it, and "" otherwise. Nobody has such names: those of the cluster have fewer labels.
func (v view) expanded(name string) string {
	for _, domain := range v.search {
		meant, ok := strings.CutSuffix(name, "."+domain)
		if !ok {
			continue
		}
		if zone := zoneOf(meant); zone != "" {
			return zone + "." + domain
		}
		s := splitService(meant)
		if host := v.canonical(s.host); strings.HasSuffix(host, "."+clusterZone) {
			if _, has := v.find(host); has {
				name, _ := strings.CutSuffix(host, "."+clusterZone)
				return strings.TrimPrefix(s.asked, name+".") + "." + domain
			}
		}
	}
	return ""
}

// zoneOf returns the zone of the mesh that name is in, or "".
func zoneOf(name string) string {
	for _, z := range Zones {
		if name == z || strings.HasSuffix(name, "."+z) {
			return z
		}
	}
	return ""
}

func labelsOf(name string) int {
	if name == "" {
		return 0
	}
	return strings.Count(name, ".") + 1
}

// service is a name taken apart: of _http._tcp.cart.shop.mesh.internal port is http and protocol tcp.
// host is where the snapshot has it, asked is the host in the query.
type service struct{ port, protocol, host, asked string }

func (s service) plain() bool { return s.port == "" && s.protocol == "" }

func splitService(name string) (s service) {
	first, rest, _ := strings.Cut(name, ".")
	second, below, _ := strings.Cut(rest, ".")
	switch {
	case !strings.HasPrefix(first, "_"):
		s.host = name
	case strings.HasPrefix(second, "_"):
		s.port, s.protocol, s.host = first[1:], second[1:], below
	default:
		s.protocol, s.host = first[1:], rest
	}
	s.asked = s.host
	return s
}

// find returns what the snapshot has of a name.
func (v view) find(host string) (entry, bool) {
	svc := v.snap.Service(host)
	if svc == nil {
		return entry{}, false
	}
	return entryOf(svc, host), true
}

// answer is what e says of s.
func (e entry) answer(s service, zone string) judgement {
	j := judgement{do: answer, host: s.host, asked: s.asked, zone: zone, entry: e}
	if s.plain() {
		return j
	}
	named := func(p mesh.Port) bool {
		return p.Name != "" && (s.port == "" || strings.EqualFold(p.Name, s.port))
	}
	i := slices.IndexFunc(e.ports, named)
	switch {
	case i < 0 || s.protocol != "tcp" || len(e.addresses) == 0:
		j.rcode, j.empty = dns.RcodeNameError, true
	case s.port == "":
		j.empty = true // there are names below
	default:
		j.port = &e.ports[i]
	}
	return j
}
