package names

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// world is what a test says of services, from which discovery makes snapshots and the
// specification its answers.
type world struct {
	services map[string]*worldService // by name and namespace, such as cart.shop
	search   []string
	gateways bool // they answer
	dns      bool // the cluster's DNS answers
}

type worldService struct {
	here      bool       // the cluster has a Service
	global    bool       // which is for other networks
	exported  bool       // by a ServiceExport
	takeover  bool       // whose hostname leads there too
	clusterIP netip.Addr // not valid: headless
	imported  bool       // others export it
	vips      []netip.Addr
	ports     [2][]string // named http and grpc: of the Service, of the import
	told      bool        // the node proxy knows all of that; otherwise once it has asked
}

var numbers = map[string]uint16{"http": 80, "grpc": 9000}

func (w *world) records(told func(*worldService) bool) (changes []discovery.Change) {
	key := func(from discovery.Source, full string) discovery.Key {
		name, namespace, _ := strings.Cut(full, ".")
		return discovery.Key{Kind: discovery.KindService, Source: from, Name: namespace + "/" + name}
	}
	for full, s := range w.services {
		name, namespace, _ := strings.Cut(full, ".")
		ports := func(i int) (out []discovery.ServicePort) {
			for _, n := range s.ports[i] {
				out = append(out, discovery.ServicePort{Name: n, Port: numbers[n]})
			}
			return out
		}
		if s.here && told(s) {
			r := discovery.Service{Name: name, Namespace: namespace, Ports: ports(0), Takeover: s.takeover}
			if s.clusterIP.IsValid() {
				r.VIPs = []netip.Addr{s.clusterIP}
			}
			if s.global {
				r.Scope = string(mesh.ScopeGlobal)
			}
			if s.exported {
				r.Aliases = []string{full + ".svc.clusterset.local"}
			}
			changes = append(changes, discovery.Change{Key: key(discovery.Cluster, full), Record: r})
		}
		if s.imported && told(s) { // as discovery/kube/imported makes it
			changes = append(changes, discovery.Change{Key: key(discovery.Told, full), Record: discovery.Service{Name: name, Namespace: namespace, Ports: ports(1),
				Scope: string(mesh.ScopeGlobal), Takeover: true, VIPs: s.vips, Aliases: []string{full + ".svc.clusterset.local"}}})
		}
	}
	slices.SortFunc(changes, func(a, b discovery.Change) int {
		return strings.Compare(fmt.Sprint(a.Key), fmt.Sprint(b.Key))
	})
	return changes
}

func (w *world) snapshot(told func(*worldService) bool) *mesh.Snapshot {
	b := discovery.NewBuilder(0)
	b.Apply(w.records(told)...)
	s, _, _ := b.Commit()
	return s
}

// specified is what a query is to be answered with: "dns" is the word of the cluster's DNS, whatever that is,
// and otherwise the rcode with what is in the answer.
func (w *world) specified(name string, kind uint16) string {
	inDNS := func() string {
		if !w.dns {
			return "SERVFAIL"
		}
		return "dns " + w.clusterDNS(name)
	}
	for _, zone := range []string{"mesh.internal", "svc.clusterset.local"} {
		if name == zone {
			return "NOERROR"
		}
		own, in := strings.CutSuffix(name, "."+zone)
		if !in {
			continue
		}
		labels := strings.Split(own, ".")
		port := ""
		if len(labels) == 4 && labels[0][0] == '_' && labels[1][0] == '_' {
			port, labels = strings.Join(labels[:2], "."), labels[2:]
		}
		if labels[0] == "" || len(labels) == 1 && labels[0][0] != '_' {
			return "NOERROR"
		}
		if len(labels) != 2 || labels[0][0] == '_' {
			return "NXDOMAIN"
		}
		full := strings.Join(labels, ".")
		s := w.services[full]
		if s == nil || !s.told && !w.gateways {
			if !w.gateways {
				return "SERVFAIL"
			}
			return "NXDOMAIN"
		}
		var addresses []netip.Addr
		var ports []string
		switch {
		case s.here && !s.global && s.imported:
			addresses, ports = s.vips, s.ports[1]
		case s.here && s.global && s.imported:
			addresses, ports = s.vips, slices.Concat(s.ports[0], s.ports[1])
		case s.imported:
			addresses, ports = s.vips, s.ports[1]
		case s.here && s.global && (zone == "mesh.internal" || s.exported):
			ports = s.ports[0]
			if s.clusterIP.IsValid() {
				addresses = []netip.Addr{s.clusterIP}
			} else if !w.gateways {
				return "SERVFAIL" // an address may come yet
			}
		default:
			if !w.gateways {
				return "SERVFAIL"
			}
			return "NXDOMAIN"
		}
		return answered(full+"."+zone, port, kind, addresses, ports)
	}
	for _, domain := range w.search {
		for _, zone := range []string{"mesh.internal", "svc.clusterset.local"} {
			if name == zone+"."+domain || strings.HasSuffix(name, "."+zone+"."+domain) {
				return "NXDOMAIN"
			}
		}
		for full, s := range w.services {
			if s.told && (s.here || s.imported) && (name == full+".svc.cluster.local."+domain || strings.HasSuffix(name, "."+full+".svc.cluster.local."+domain) && strings.Count(name, "_") == 2) {
				return "NXDOMAIN"
			}
		}
	}
	if own, in := strings.CutSuffix(name, ".svc.cluster.local"); in {
		labels, port := strings.Split(own, "."), ""
		if len(labels) == 4 && labels[0][0] == '_' {
			port, labels = strings.Join(labels[:2], "."), labels[2:]
		}
		s := w.services[strings.Join(labels, ".")]
		if s == nil || !s.imported || s.here && w.dns || !s.told && (!w.gateways || !w.dns) {
			if s != nil && s.here && s.told && s.clusterIP.IsValid() && !w.dns {
				return answered(name, port, kind, []netip.Addr{s.clusterIP}, s.ports[0])
			}
			return inDNS()
		}
		if s.here { // and its DNS is not
			if !s.clusterIP.IsValid() {
				return inDNS()
			}
			return answered(name, port, kind, []netip.Addr{s.clusterIP}, s.ports[0])
		}
		return answered(name, port, kind, s.vips, s.ports[1])
	}
	return inDNS()
}

// clusterDNS is the word of CoreDNS.
func (w *world) clusterDNS(name string) string {
	own, in := strings.CutSuffix(name, ".svc.cluster.local")
	labels := strings.Split(own, ".")
	if len(labels) == 4 && labels[0][0] == '_' {
		labels = labels[2:]
	}
	if s := w.services[strings.Join(labels, ".")]; in && s != nil && s.here || name == "example.com" {
		return "NOERROR"
	}
	return "NXDOMAIN"
}

func answered(name, port string, kind uint16, addresses []netip.Addr, ports []string) string {
	list := func() string {
		var out []string
		for _, a := range addresses {
			if a.Is4() && kind == dns.TypeA || a.Is6() && kind == dns.TypeAAAA {
				out = append(out, a.String())
			}
		}
		return strings.TrimSpace("NOERROR " + strings.Join(out, " "))
	}
	if port == "" {
		return list()
	}
	if len(addresses) == 0 {
		return "NXDOMAIN"
	}
	for _, p := range ports {
		if port == "_"+p+"._tcp" {
			if kind == dns.TypeSRV {
				return fmt.Sprint("NOERROR ", numbers[p])
			}
			return "NOERROR"
		}
	}
	return "NXDOMAIN"
}

// pipeServer is a DNS server at the other end of a connection in memory: reply gets each message and
// returns nil for silence.
func pipeServer(reply func(m *dns.Msg) *dns.Msg) net.Conn {
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		buf := make([]byte, 65535)
		n, err := there.Read(buf)
		for ; err == nil; n, err = there.Read(buf) {
			var m dns.Msg
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			if r := reply(&m); r != nil {
				b, _ := r.Pack()
				there.Write(b)
			}
		}
	}()
	return here
}

// serve returns a Server of a pod in w, and counts what it asks the cluster's DNS.
func (w *world) serve(counted *int) *Server {
	snap := w.snapshot(func(s *worldService) bool { return s.told })
	return New(Config{
		Snapshot: func() *mesh.Snapshot { return snap },
		Resolver: func() Resolver {
			return Resolver{Search: w.search, Servers: servers("10.96.0.10"), Timeout: defaultTimeout}
		},
		Ask: func(_ context.Context, host string) bool {
			if !w.gateways {
				return false
			}
			name := strings.SplitN(host, ".", 3)
			snap = w.snapshot(func(s *worldService) bool { return s.told || s == w.services[name[0]+"."+name[1]] })
			return true
		},
		Dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
			*counted++
			if !w.dns {
				return nil, io.ErrUnexpectedEOF
			}
			return pipeServer(func(m *dns.Msg) *dns.Msg {
				r := new(dns.Msg).SetReply(m)
				r.Zero = true // how the test tells it
				if w.clusterDNS(strings.ToLower(strings.TrimSuffix(m.Question[0].Name, "."))) == "NXDOMAIN" {
					r.Rcode = dns.RcodeNameError
				}
				return r
			}), nil
		},
		Metrics: NewMetrics(prometheus.NewRegistry()), Log: zerolog.Nop(),
	})
}

// outcomeOf puts a reply into the words of the specification.
func outcomeOf(raw []byte) (string, error) {
	var m dns.Msg
	if err := m.Unpack(raw); err != nil {
		return "", err
	}
	out := dns.RcodeToString[m.Rcode]
	if m.Zero {
		return "dns " + out, nil
	}
	if m.Rcode == dns.RcodeServerFailure {
		return out, nil
	}
	hasSOA := len(m.Ns) == 1 && m.Ns[0].Header().Rrtype == dns.TypeSOA && dns.IsSubDomain(m.Ns[0].Header().Name, strings.ToLower(m.Question[0].Name))
	if len(m.Answer) == 0 && !hasSOA || len(m.Answer) > 0 && len(m.Ns) > 0 {
		return "", errors.New("a SOA where none is due, or none where one is")
	}
	for _, rr := range m.Answer {
		switch x := rr.(type) {
		case *dns.A:
			out += " " + x.A.String()
		case *dns.AAAA:
			out += " " + x.AAAA.String()
		case *dns.SRV:
			out += fmt.Sprint(" ", x.Port)
			if len(m.Extra) == 0 || !strings.HasSuffix(strings.ToLower(m.Question[0].Name), x.Target) {
				return "", errors.New("SRV without the addresses of its target")
			}
		}
	}
	return out, nil
}

func randomWorld(r *rand.Rand) *world {
	w := &world{services: map[string]*worldService{}, gateways: r.IntN(4) > 0, dns: r.IntN(5) > 0}
	for i, full := range []string{"a.x", "b.x", "a.y", "b.y"} {
		if r.IntN(5) == 0 {
			continue
		}
		s := &worldService{here: r.IntN(2) == 0, imported: r.IntN(2) == 0, told: r.IntN(2) == 0}
		s.global = s.here && r.IntN(2) == 0
		s.exported, s.takeover = s.global && r.IntN(2) == 0, s.global && r.IntN(2) == 0
		if s.here && r.IntN(4) > 0 {
			s.clusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})
		}
		four, six := netip.AddrFrom4([4]byte{240, 240, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprint("2001:2::", i+1))
		s.vips = [][]netip.Addr{{four}, {six}, {four, six}}[r.IntN(3)]
		for k := range s.ports {
			s.ports[k] = [][]string{{"http"}, {"grpc"}, {"http", "grpc"}}[r.IntN(3)]
		}
		w.services[full] = s
	}
	w.search = [][]string{nil, {"x.svc.cluster.local", "svc.cluster.local", "cluster.local"}, {"y.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"}, {"mesh.internal"}}[r.IntN(4)]
	return w
}

func randomName(r *rand.Rand, search []string) string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	name := pick("", "", "", "", "_http._tcp.", "_grpc._tcp.", "_http._udp.", "_tcp.", "pod.") + pick("a.", "b.", "c.", "") + pick("x.", "y.", "z.", "") +
		pick("mesh.internal", "mesh.internal", "svc.clusterset.local", "svc.cluster.local", "svc.cluster.local", "example.com")
	if len(search) > 0 && r.IntN(3) == 0 {
		name += "." + search[r.IntN(len(search))]
	}
	return name
}

// What pods are answered is what a slow specification says, which knows services as people speak of
// them, and nothing of snapshots.
func TestAnswersAreWhatTheSpecificationSays(t *testing.T) {
	seed := rand.Uint64()
	seen := map[string]int{}
	for n := range 150 {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		w := randomWorld(r)
		for range 25 {
			asked := 0
			s := w.serve(&asked)
			name := randomName(r, w.search)
			kind := []uint16{dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeTXT}[r.IntN(5)]
			if strings.HasPrefix(name, "_tcp.") {
				continue // whether there are names below is in TestNamesAboveOthersAreEmpty
			}
			want := w.specified(name, kind)
			mixed := []byte(name)
			for i := range mixed {
				if r.IntN(3) == 0 && mixed[i] >= 'a' && mixed[i] <= 'z' {
					mixed[i] -= 'a' - 'A'
				}
			}
			q, reply, later := s.atOnce(packed(t, string(mixed), kind), true)
			if later {
				reply = s.wait(t.Context(), &q, "udp", 512)
				s.free(&q)
			}
			got, err := outcomeOf(reply)
			if err != nil || got != want {
				t.Fatalf("seed %d, world %d: %s %s is %q (%v), want %q\nsearch %v, gateways %v, DNS %v\nservices %s", seed, n, mixed, dns.TypeToString[kind], got, err, want, w.search, w.gateways, w.dns, w)
			}
			ours := strings.Contains(name, "mesh.internal") || strings.Contains(name, "clusterset")
			if ours && zoneOf(name) == "" && want != "NXDOMAIN" {
				ours = false // behind a search domain that the pod has not
			}
			if ours && asked > 0 {
				t.Fatalf("seed %d, world %d: %s has cost %d queries", seed, n, name, asked)
			}
			seen[want[:min(len(want), 8)]]++
			if binary.BigEndian.Uint16(reply) != q.id() {
				t.Fatal("another id")
			}
		}
	}
	for _, kind := range []string{"NOERROR", "NOERROR ", "NXDOMAIN", "SERVFAIL", "dns NOER", "dns NXDO"} {
		if seen[kind] < 20 {
			t.Errorf("%q was due %d times: the test shows nothing (%v)", kind, seen[kind], seen)
		}
	}
}

func (w *world) String() string {
	var b strings.Builder
	for name, s := range w.services {
		fmt.Fprintf(&b, "\n  %s %+v", name, *s)
	}
	return b.String()
}
