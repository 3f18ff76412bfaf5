package nodeproxy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/federation/healthstream"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

// Another network says where its gateways are, and node proxies dial and probe that: nothing
// of the own network is there, nor of the node.
func TestGatewaysOfOtherNetworksAreElsewhere(t *testing.T) {
	discovered := func(w *toldWorld, gateway, pod string) {
		w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindGateway, Name: "east/gw-1"}, Record: discovery.Gateway{Name: "gw-1", Network: "east", Address: netip.MustParseAddrPort(gateway)}},
			discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "pod"}, Record: discovery.Workload{UID: "pod", Network: "east", Node: "n", Addresses: []netip.Addr{netip.MustParseAddr(pod)}, Namespace: "default", ServiceAccount: "x"}},
			discovery.Change{Key: discovery.Key{Kind: discovery.KindService, Name: "api"}, Record: discovery.Service{Name: "api", Namespace: "default", VIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []discovery.ServicePort{{Port: 443}}}})
	}
	const cluster, loopback = "10.1.0.1:15008", "127.20.1.1:15008"
	for what, c := range map[string]struct {
		own     string
		at      []string
		want    string // its gateway is there
		problem string
	}{
		"another machine":                  {cluster, []string{"10.9.0.1:15008"}, "10.9.0.1:15008", ""},
		"the node proxy's own admin port":  {cluster, []string{"127.0.0.1:15000"}, "", "is on loopback"},
		"loopback in IPv6":                 {cluster, []string{"[::1]:15008"}, "", "is on loopback"},
		"loopback in IPv6 that is IPv4":    {cluster, []string{"[::ffff:127.0.0.1]:15000"}, "", "is on loopback"},
		"loopback as the own gateways":     {loopback, []string{"127.20.2.1:15008"}, "127.20.2.1:15008", ""},
		"an own gateway on loopback":       {loopback, []string{loopback}, "", "gateway of this network"},
		"the cloud's metadata service":     {cluster, []string{"169.254.169.254:80"}, "", "link-local"},
		"the same in IPv6 that is IPv4":    {loopback, []string{"[::ffff:169.254.169.254]:80"}, "", "link-local"},
		"link-local IPv6":                  {cluster, []string{"[fe80::1]:15008"}, "", "link-local"},
		"the own network's gateway":        {cluster, []string{cluster}, "", "gateway of this network"},
		"a pod of the own network":         {cluster, []string{"10.1.7.7:8080"}, "", "workload pod"},
		"a service of the own network":     {cluster, []string{"10.96.0.1:443"}, "", "service api.default"},
		"the second of two addresses":      {cluster, []string{"127.0.0.1:15008", "10.9.0.1:15008"}, "10.9.0.1:15008", ""},
		"no machine's":                     {cluster, []string{"0.0.0.0:15008"}, "", ""},
		"those of many":                    {cluster, []string{"224.0.0.1:15008"}, "", ""},
		"nowhere that can be dialed as is": {cluster, nil, "", "no address"},
	} {
		w := newToldWorld(t, "")
		discovered(w, c.own, "10.1.7.7")
		var addresses []record.Address
		for _, a := range c.at {
			at := netip.MustParseAddrPort(a)
			addresses = append(addresses, record.Address{Host: at.Addr().String(), Port: at.Port()})
		}
		w.proven.gateways["west"] = []healthstream.Gateway{{Name: "gw-x", Live: true, Body: &record.Network{Gateway: "gw-x", Addresses: addresses}}}
		w.proven.offer(shopName, shopExport(nil))
		w.update(shopName)
		got := ""
		for _, g := range w.snap.Gateways("west") {
			got = g.Address.String()
		}
		if got != c.want {
			t.Errorf("%s: %v is taken for %q; want %q", what, c.at, got, c.want)
		}
		if p := strings.Join(w.problems(), " "); (c.problem == "") != (p == "") || !strings.Contains(p, c.problem) {
			t.Errorf("%s: problems %q; want one that says %q", what, p, c.problem)
		}
	}

	w := newToldWorld(t, "")
	uses := false
	w.usesQUIC = func(string) bool { return uses }
	const atTCP = "QUIC to gateway gw-1 of network west is dialed at its addresses for TCP: "
	for i, c := range []struct {
		quic    []record.Address
		want    string
		problem string // for a node proxy that dials QUIC
	}{
		{nil, "[10.2.0.1:15008]", ""},
		{[]record.Address{{Host: "10.9.0.9", Port: 443}}, "[10.9.0.9:443]", ""},
		{[]record.Address{{Host: "127.0.0.1", Port: 443}, {Host: "10.9.0.8", Port: 443}}, "[10.9.0.8:443]", ""},
		{[]record.Address{{Host: "127.0.0.1", Port: 443}}, "[10.2.0.1:15008]", atTCP + "its address 127.0.0.1:443 is on loopback"},
		{[]record.Address{{Host: "10.9.0.9", Port: 443}}, "[10.9.0.9:443]", ""},
		{[]record.Address{{Host: "gw.example.com", Port: 443}}, "[10.2.0.1:15008]", atTCP},
		{nil, "[10.2.0.1:15008]", ""},
	} {
		w.proven.gateways["west"][0].Body = &record.Network{Gateway: "gw-1", Addresses: []record.Address{{Host: "10.2.0.1", Port: 15008}}, QUIC: c.quic}
		w.proven.offer(shopName, shopExport(nil))
		w.update(shopName)
		w.relocated()
		g := w.snap.Gateways("west")[0]
		if tcp, quic := fmt.Sprint(g.Dialled(false)), fmt.Sprint(g.Dialled(true)); tcp != "[10.2.0.1:15008]" || quic != c.want {
			t.Errorf("QUIC addresses %d: dialed at %s, by QUIC at %s; want %s", i, tcp, quic, c.want)
		}
		for _, uses = range []bool{false, true} {
			w.relocated()
			p := strings.Join(w.problems(), " ")
			if want := uses && c.problem != ""; (p != "") != want || want && !strings.HasPrefix(p, c.problem) {
				t.Errorf("QUIC addresses %d, QUIC used %v: problems %q; want %q", i, uses, p, c.problem)
			}
		}
	}

	w = newToldWorld(t, "")
	w.proven.offer(shopName, shopExport(nil))
	w.update(shopName)
	discovered(w, cluster, "10.2.0.1") // where west's gateway is said to be
	w.relocated()
	if g := w.snap.Gateways("west"); len(g) != 0 {
		t.Errorf("a pod of the own network is at %s now, and it is a gateway of west still", g[0].Address)
	}
	w.take(discovery.Change{Key: discovery.Key{Kind: discovery.KindWorkload, Name: "pod"}})
	w.relocated()
	if g := w.snap.Gateways("west"); len(g) != 1 || len(w.problems()) != 0 {
		t.Errorf("that pod is gone: gateways %v, problems %q; want gw-1 and none", g, w.problems())
	}
}
