//go:build linux

package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"text/template"
)

// Ports. Our admin servers leave 15000 to stock proxies.
const (
	adminPort = 16000
	socksPort = 15080
	appPort   = 8080
	nearPort  = 8001 // of the outbound listener of our client proxy, single HBONE
	farPort   = 8002 // double HBONE
	relayPort = 9000

	stockOutbound = 15001 // where a stock proxy takes redirected connections
)

//go:embed mesh.yaml
var meshText string

var meshTemplate = template.Must(template.New("mesh").Parse(meshText))

// pair is one client and one server of a kind, for the mesh file.
type pair struct {
	Kind                    string
	ClientHost, ServerHost  string // nodes
	Client, Server          netip.Addr
	NearAddress, FarAddress netip.Addr // virtual
}

func (t topology) pairs() (all []pair) {
	for _, k := range t.kinds {
		all = append(all, pair{k, "client-" + k, "server-" + k, t.clients[k].address, t.servers[k].address, vip("near", k), vip("far", k)})
	}
	return all
}

// vip is where clients reach the service near-KIND or far-KIND.
func vip(side, kind string) netip.Addr {
	last := map[string]byte{"near" + ours: 1, "far" + ours: 2, "near" + stock: 3, "far" + stock: 4}[side+kind]
	return netip.AddrFrom4([4]byte{240, 240, 0, last})
}

// configure writes the mesh file and those of our processes.
func (t topology) configure(dir string) error {
	var mesh bytes.Buffer
	err := meshTemplate.Execute(&mesh, struct {
		Gateway netip.AddrPort
		Pairs   []pair
	}{t.gateway.at(15008), t.pairs()})
	if err != nil {
		return err
	}
	common := func(p place) string {
		return fmt.Sprintf("discovery: {file: mesh.yaml}\nidentity: {source: ca, dir: ca}\nlog: {level: warn, format: json}\nadmin: {address: \"%v\"}\n", p.local(adminPort))
	}
	client, server := t.clients[ours], t.servers[ours]
	files := map[string]string{
		"mesh.yaml":        mesh.String(),
		"gateway.yaml":     "name: eastwest\nnetwork: net-b\nfederation: {keys: network}\n" + common(t.gateway),
		"server-ours.yaml": "node: server-ours\nnetwork: net-b\n" + common(server),
		"client-ours.yaml": "node: client-ours\nnetwork: net-a\n" + common(client) + fmt.Sprintf(`
socks: [{workload: shop-ours, listen: "%v"}]
outbound:
  - {workload: shop-ours, listen: "%v", to: "near-ours.demo.svc.cluster.local:80"}
  - {workload: shop-ours, listen: "%v", to: "far-ours.demo.svc.cluster.local:80"}
`, client.local(socksPort), client.local(nearPort), client.local(farPort)),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
