package nodeproxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// domainWorld is a proxy in a cluster of some domain, without a reachable endpoint.
type domainWorld struct {
	p    *Proxy
	log  bytes.Buffer
	port net.Listener
}

func newDomainWorld(t *testing.T, domain string, snap *mesh.Snapshot, l net.Listener) *domainWorld {
	w := &domainWorld{p: newTestProxy(t, snap), port: l}
	w.p.cfg.Network, w.p.cfg.Node, w.p.cfg.ClusterDomain = "east", "n", domain
	w.p.domain, w.p.log, w.p.peerLines = w.p.cfg.domain(), zerolog.New(&w.log), nil
	return w
}

// explained is what isthmus explain says of a destination.
func (w *domainWorld) explained(t *testing.T, to string) string {
	answer := httptest.NewRecorder()
	w.p.explain(answer, httptest.NewRequest("GET", "/explain?source=shop&destination="+url.QueryEscape(to), nil))
	var m map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &m); err != nil {
		t.Fatalf("explain %s: %v: %s", to, err, answer.Body)
	}
	delete(m, "now")
	return fmt.Sprint(answer.Code, m)
}

// checked is what nodeproxy --check says of a listener to a destination, and where that listener leads.
func (w *domainWorld) checked(snap *mesh.Snapshot, to, networks string) string {
	c := w.p.cfg
	c.Federation.Networks = networks
	return fmt.Sprintln(canonicalTargets([]Outbound{{To: to}}, c.domain())[0].To, c.checkTarget(snap, Outbound{To: to}))
}

// connected is the reply of SOCKS to a destination, and the line of the access log.
func (w *domainWorld) connected(t *testing.T, host string, port byte) string {
	client, err := net.Dial("tcp", w.port.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	app, err := w.port.Accept()
	if err != nil {
		t.Fatal(err)
	}
	request := append([]byte{5, 1, 0, 5, 1, 0, 3, byte(len(host))}, host...)
	if _, err := client.Write(append(request, 0, port)); err != nil {
		t.Fatal(err)
	}
	w.log.Reset()
	w.p.socks(Socks{Workload: "shop"})(t.Context(), app.(*net.TCPConn))
	reply := make([]byte, 2+10) // the method, and the reply with an IPv4 address
	if _, err := io.ReadFull(client, reply); err != nil {
		t.Fatalf("SOCKS to %s: reply %v, %v", host, reply, err)
	}
	var line map[string]any
	if err := json.Unmarshal(w.log.Bytes(), &line); err != nil {
		t.Fatalf("SOCKS to %s: %v: %s", host, err, w.log.String())
	}
	return fmt.Sprintln(reply[3], line["service"], line["result"], line["error"])
}

// withoutSuggestion cuts off what depends on the spelling of a name.
func withoutSuggestion(text string) string {
	for _, hint := range []string{": did you mean", ": known are"} {
		text, _, _ = strings.Cut(text, hint)
	}
	return text
}

var endDot = regexp.MustCompile(`([[:alnum:]])\.([":\s]|$)`)

// The invariant: each destination of SOCKS, of a listener and of explain has the same outcome in a cluster of any domain as in
// one of cluster.local, but for the domain in texts.
func TestDestinationsResolveAlikeInEveryDomain(t *testing.T) {
	service := func(name, hostname string, n byte) discovery.Service {
		return discovery.Service{Name: name, Namespace: "demo", Hostname: hostname, Global: true, VIPs: []netip.Addr{netip.AddrFrom4([4]byte{240, 240, 0, n})}, Ports: []discovery.ServicePort{{Port: 80, TargetPort: 8080}}}
	}
	snap, problems := discovery.Build(1, discovery.Config{
		Networks:  []discovery.Network{{Name: "east"}},
		Services:  []discovery.Service{service("hello", "", 1), service("api", "api.example.com", 2)},
		Workloads: []discovery.Workload{{UID: "shop", Namespace: "demo", Network: "east", Node: "n", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ServiceAccount: "shop"}},
	})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	hosts := []string{"api.example.com", "API.example.com.svc.DOMAIN", "hello", "240.240.0.1"} // DOMAIN stands for the domain
	for _, name := range []string{"hello.demo", "HELLO.Demo", "api.demo", "none.demo", "hello-0.hello.demo", "demo"} {
		for _, zone := range []string{"svc.DOMAIN", "DOMAIN", "svc.DOMAIN.svc.DOMAIN", "mesh.internal", "svc.clusterset.local", "svc"} {
			hosts = append(hosts, name+"."+zone, name+"."+zone+".")
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	outcomes := func(w *domainWorld, domain, pattern string, port byte) (out [4]string) {
		host := strings.ReplaceAll(pattern, "DOMAIN", domain)
		to := net.JoinHostPort(host, fmt.Sprint(port))
		for i, text := range []string{w.connected(t, host, port), w.explained(t, to), w.checked(snap, to, ""), w.checked(snap, to, "networks")} {
			text = strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(text), domain, "DOMAIN"), mesh.CanonicalDomain, "DOMAIN")
			text = endDot.ReplaceAllString(text, "$1$2") // names are equal without it
			if name, _ := strings.CutSuffix(strings.TrimSuffix(pattern, "."), ".svc.DOMAIN"); strings.Contains(name, "DOMAIN") {
				text = withoutSuggestion(text)
			}
			out[i] = text
		}
		return out
	}
	plain := newDomainWorld(t, mesh.CanonicalDomain, snap, l)
	for _, domain := range []string{"k8s.example", "corp.invalid", "cluster.local.example", "a.b.c.d.e"} {
		w := newDomainWorld(t, domain, snap, l)
		for _, host := range hosts {
			to := net.JoinHostPort(strings.ReplaceAll(host, "DOMAIN", domain), "80")
			if leads := canonicalTargets([]Outbound{{To: to}}, domain)[0].To; strings.Contains(leads, ".svc."+domain+":") {
				t.Errorf("domain %s: a listener to %s leads to %s, want a canonical name", domain, to, leads)
			}
			for _, port := range []byte{80, 81} {
				got, want := outcomes(w, domain, host, port), outcomes(plain, mesh.CanonicalDomain, host, port)
				for i, surface := range []string{"SOCKS", "explain", "a listener", "a listener beside linked networks"} {
					if got[i] != want[i] {
						t.Errorf("%s to %s:%d, domain %s:\n%s\nwith cluster.local:\n%s", surface, host, port, domain, got[i], want[i])
					}
				}
			}
		}
	}
}
