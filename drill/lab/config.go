package lab

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/drill/scenario"
	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

const (
	trustDomain = "cluster.local"
	nodeAccount = "isthmus-system/nodeproxy"
	keysDir     = "networks"
)

// writeConfigs writes the discovery file of each network and the configuration
// of each process of one arm into dir. Networks have discovery files of their
// own because each reaches the others' gateways for gossip through relays.
func writeConfigs(dir string, l *scenario.Layout, arm scenario.Arm) error {
	for _, n := range l.Scenario.Networks {
		if err := writeYAML(filepath.Join(dir, meshFile(n.Name)), meshOf(l, n.Name)); err != nil {
			return err
		}
	}
	var networks []string
	for _, n := range l.Scenario.Networks {
		networks = append(networks, n.Name)
	}
	if _, err := keyfile.InitAll(filepath.Join(dir, keysDir), networks, rand.Reader); err != nil {
		return err
	}
	for _, g := range l.Gateways {
		if err := writeYAML(filepath.Join(dir, g.Name+".yaml"), gatewayConfig(g, arm)); err != nil {
			return err
		}
	}
	for _, n := range l.Nodes {
		if err := writeYAML(filepath.Join(dir, n.Name+".yaml"), nodeConfig(l, n, arm)); err != nil {
			return err
		}
	}
	return nil
}

func meshFile(network string) string { return "mesh-" + network + ".yaml" }

func writeYAML(path string, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.WriteFile(path, b, 0o644)
}

func hostname(service string) string { return service + ".default.svc.cluster.local" }

// meshOf is the mesh as network sees it.
func meshOf(l *scenario.Layout, network string) discovery.Config {
	c := discovery.Config{TrustDomain: trustDomain}
	locality := map[string]discovery.Locality{}
	for _, n := range l.Scenario.Networks {
		one := discovery.Network{Name: n.Name}
		for _, node := range l.Nodes {
			if node.Network == n.Name { // one that no pod and no client runs on starts all the same
				one.Nodes = append(one.Nodes, node.Name)
			}
		}
		c.Networks = append(c.Networks, one)
		locality[n.Name] = discovery.Locality{Region: n.Locality.Region, Zone: n.Locality.Zone}
	}
	for _, g := range l.Gateways {
		c.Gateways = append(c.Gateways, discovery.Gateway{Name: g.Name, Network: g.Network, Address: g.Address,
			ServiceAccount: "isthmus-system/gateway-" + g.Network, Locality: locality[g.Network], FederationAddress: gossipAddress(l, network, g)})
	}
	var hosts []string
	for _, s := range l.Scenario.Services {
		v := discovery.Service{Name: s.Name, Hostname: hostname(s.Name), Global: true, TrafficDistribution: s.TrafficDistribution}
		for _, p := range s.Ports {
			v.Ports = append(v.Ports, discovery.ServicePort{Name: p.Name, Port: p.Port, TargetPort: p.Target})
		}
		c.Services = append(c.Services, v)
		hosts = append(hosts, v.Hostname)
	}
	for _, p := range l.Pods {
		capacity := p.Capacity
		c.Workloads = append(c.Workloads, discovery.Workload{UID: p.Name, Name: p.Name, ServiceAccount: "app", Network: p.Network, Cluster: p.Network,
			Node: p.Node, Addresses: []netip.Addr{p.Address}, Locality: locality[p.Network], Capacity: &capacity, Services: hosts})
	}
	for _, k := range l.Clients {
		c.Workloads = append(c.Workloads, discovery.Workload{UID: k.Name, Name: k.Name, ServiceAccount: "client", Network: k.Network, Cluster: k.Network,
			Node: k.Node, Addresses: []netip.Addr{k.Address}, Locality: locality[k.Network]})
	}
	return c
}

// gossipAddress is where network's gateways dial g: itself at home, and from
// elsewhere through the relay that a drill can cut.
func gossipAddress(l *scenario.Layout, network string, g scenario.Gateway) netip.AddrPort {
	for _, r := range l.Relays {
		if r.From == network && r.To == g.Name {
			return r.Listen
		}
	}
	return g.Address
}

type object = map[string]any

// common is what both kinds of process are told.
func common(network string, admin netip.AddrPort, arm scenario.Arm) object {
	c := object{
		"network":          network,
		"trustDomain":      trustDomain,
		"discovery":        object{"file": meshFile(network)},
		"identity":         object{"source": "ca", "dir": "ca", "ttl": "1h"},
		"outlierDetection": outlier(arm),
		"federation":       object{"health": *arm.Federation.Health},
		"admin":            object{"address": admin.String()},
		"log":              object{"level": "info", "format": "json"},
	}
	if v := arm.Lines.Transport; v != "" {
		c["lines"] = object{"transport": v}
	}
	return c
}

func outlier(arm scenario.Arm) object {
	o := object{"scope": arm.OutlierDetection.Scope}
	if v := arm.OutlierDetection.Mode; v != "" {
		o["mode"] = v
	}
	if v := arm.OutlierDetection.FailureThreshold; v != nil {
		o["failureThreshold"] = *v
	}
	if v := arm.OutlierDetection.BaseBackoffSecs; v != nil {
		o["baseBackoffSecs"] = *v
	}
	return o
}

// gatewayConfig is a gateway's own YAML. A network service is something that
// only clients see: for a gateway that scope means its hops.
func gatewayConfig(g scenario.Gateway, arm scenario.Arm) object {
	c := common(g.Network, g.Admin, arm)
	c["name"] = g.Name
	c["listen"] = g.Address.String()
	c["nodeServiceAccount"] = nodeAccount
	ring := keyfile.RingIn(keysDir, g.Network)
	c["federation"] = object{"health": *arm.Federation.Health, "keys": ring.Dir, "networks": ring.List}
	if o := c["outlierDetection"].(object); o["scope"] == "networkService" {
		o["scope"] = "endpoint"
	}
	return c
}

func nodeConfig(l *scenario.Layout, n scenario.Node, arm scenario.Arm) object {
	c := common(n.Network, n.Admin, arm)
	c["node"] = n.Name
	c["serviceAccount"] = nodeAccount
	if *arm.Federation.Health { // what other networks' gateways say is checked by their keys
		c["federation"] = object{"health": true, "networks": keyfile.RingIn(keysDir, n.Network).List}
	}
	if v := arm.OutlierDetection.Listeners; v != nil {
		c["outlierDetection"].(object)["listeners"] = *v
	}
	if a := arm.Retry.Attempts; a != nil {
		c["retry"] = object{"attempts": *a}
	}
	var out []object
	for _, k := range l.Clients {
		if k.Node != n.Name {
			continue
		}
		for i, p := range l.Scenario.Ports() {
			to := fmt.Sprintf("%s:%d", hostname(l.Scenario.ServiceOf(p.Name).Name), p.Port)
			out = append(out, object{"workload": k.Name, "listen": k.Listen[i].String(), "to": to})
		}
	}
	if out != nil {
		c["outbound"] = out
	}
	return c
}
