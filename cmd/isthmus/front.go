package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/internal/hostport"
)

const gatewayPort = "15008"

// front is what a cluster says of where its gateways are dialed.
type front struct {
	addresses []string // host:port
	why       string   // there is none
	pending   bool     // there may be one later
	look      string   // what kubectl describes to say why it is pending
}

// frontOf asks a cluster: address.hosts of its gateways goes before what their Service has, as
// it does for these.
func frontOf(ctx context.Context, k kubectl) (front, error) {
	var m configMap
	if _, err := k.get(ctx, "configmap", "isthmus-gateway", &m); err != nil {
		return front{}, err
	}
	var config struct{ Address struct{ Hosts []string } }
	if yaml.Unmarshal([]byte(m.Data["gateway.yaml"]), &config) == nil && len(config.Address.Hosts) > 0 {
		return front{addresses: config.Address.Hosts}, nil
	}
	var s struct {
		Spec struct {
			Type        string
			ExternalIPs []string
			Ports       []struct{ Port, NodePort int }
		}
		Status struct {
			LoadBalancer struct {
				Ingress []struct{ IP, Hostname string }
			}
		}
	}
	there, err := k.get(ctx, "service", "isthmus-gateway", &s)
	if err != nil {
		return front{}, err
	}
	var f front
	take := func(hosts ...string) {
		for _, h := range hosts {
			if h != "" {
				f.addresses = append(f.addresses, net.JoinHostPort(h, gatewayPort))
			}
		}
	}
	switch s.Spec.Type {
	case "LoadBalancer":
		for _, in := range s.Status.LoadBalancer.Ingress {
			take(in.IP, in.Hostname)
		}
		f.pending, f.why, f.look = true, "its load balancer is pending", "service isthmus-gateway"
	case "NodePort":
		f.why = "it is of type NodePort, and no gateway is on a node with an address"
		if len(s.Spec.Ports) > 0 && s.Spec.Ports[0].NodePort > 0 {
			f.nodes(ctx, k, s.Spec.Ports[0].NodePort)
		}
	default:
		f.why = "it is of type ClusterIP and has no externalIPs, and no gateway has a hostPort"
		if take(s.Spec.ExternalIPs...); there && len(f.addresses) == 0 {
			f.nodes(ctx, k, 0)
		}
	}
	if !there {
		f.why = "it is not there: install the chart"
	}
	if len(f.addresses) > 0 {
		return front{addresses: f.addresses}, nil
	}
	return f, nil
}

// nodes takes the addresses of nodes. Who may not ask for these is told so, and may write them.
func (f *front) nodes(ctx context.Context, k kubectl, port int) {
	addresses, waits, err := atNodes(ctx, k, port)
	switch {
	case err != nil:
		f.why = fmt.Sprintf("its nodes could not be asked for: %v", err)
	case len(addresses) == 0 && len(waits) > 0:
		f.pending, f.why, f.look = true, "its gateways are on no nodes with addresses yet: "+strings.Join(waits, ", "), "pods --selector "+gatewayPods
		if !slices.ContainsFunc(waits, func(w string) bool { return strings.HasPrefix(w, "pod ") }) {
			f.look = "nodes" // all are scheduled
		}
	}
	f.addresses = addresses
}

// dialled is an address that somebody has written, with the port of gateways where it has none.
func dialled(s string) (string, error) {
	full := s
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		full = net.JoinHostPort(a.String(), gatewayPort)
	} else if hostport.IsName(s) {
		full = net.JoinHostPort(s, gatewayPort)
	}
	host, port, err := hostport.Split(full)
	if err != nil {
		return "", err
	}
	full = net.JoinHostPort(host, strconv.Itoa(int(port)))
	if why := nearOnly(full); why != "" {
		return "", fmt.Errorf("%.80q is %s: write an address by which other networks reach the gateways", s, why)
	}
	return full, nil
}

// nearOnly says of an address that other networks cannot mean the same machine by what it is; empty if they can.
func nearOnly(address string) string {
	host, _, _ := net.SplitHostPort(address)
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	a, err := netip.ParseAddr(host)
	switch a = a.Unmap(); {
	case host == "localhost" || strings.HasSuffix(host, ".localhost") || err == nil && a.IsLoopback():
		return "a loopback address, which leads to whoever dials it"
	case err == nil && a.IsLinkLocalUnicast():
		return "a link-local address, which leads no further than one link"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}

// dialledAll is dialled of all; errors name --address.
func dialledAll(list []string) (out []string, err error) {
	for _, s := range list {
		a, err := dialled(s)
		if err != nil {
			return nil, exit(exitUsage, fmt.Errorf("--address: %w", err))
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out, nil
}

// byNetwork reads values of link --address, NETWORK=ADDRESS. NETWORK= alone has the network with no
// address: it is dialed where its cluster says.
func byNetwork(list []string) (map[string][]string, error) {
	out, of := map[string][]string{}, map[string]string{}
	for _, s := range list {
		network, a, ok := strings.Cut(strings.TrimSpace(s), "=")
		if !ok || network == "" {
			return nil, exit(exitUsage, fmt.Errorf("--address %.80q: write NETWORK=ADDRESS, such as west=203.0.113.7:15008", s))
		}
		if a == "" {
			if len(out[network]) > 0 {
				return nil, bothWays(network)
			}
			out[network] = nil
			continue
		}
		if was, there := out[network]; there && len(was) == 0 {
			return nil, bothWays(network)
		}
		more, err := dialledAll([]string{a})
		if err != nil {
			return nil, err
		}
		if other, taken := of[more[0]]; taken && other != network {
			return nil, exit(exitUsage, fmt.Errorf("--address: %s is given to networks %q and %q: each has addresses of its own, as who dials one of them must reach its gateways", more[0], other, network))
		}
		of[more[0]] = network
		if !slices.Contains(out[network], more[0]) {
			out[network] = append(out[network], more...)
		}
	}
	return out, nil
}

func bothWays(network string) error {
	return exit(exitUsage, fmt.Errorf("--address: %[1]s= takes what the cluster of network %[1]q says, and there is an address for it beside that: leave one of them out", network))
}

// stale says which addresses that a cluster knows of another are none of those that this one
// has now. A host name may stand for an address, as far as lookup says.
func stale(ctx context.Context, known, now []string, lookup func(ctx context.Context, host string) ([]string, error)) (out []string) {
	resolved := func(address string) []string {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil
		}
		list := []string{strings.ToLower(strings.TrimSuffix(host, "."))}
		if _, err := netip.ParseAddr(host); err != nil {
			more, _ := lookup(ctx, host)
			list = append(list, more...)
		}
		for i, h := range list {
			if a, err := netip.ParseAddr(h); err == nil {
				h = a.Unmap().String()
			}
			list[i] = net.JoinHostPort(h, port)
		}
		return list
	}
	var present []string
	for _, a := range now {
		present = append(present, resolved(a)...)
	}
	for _, a := range known {
		if !slices.ContainsFunc(resolved(a), func(s string) bool { return slices.Contains(present, s) }) {
			out = append(out, a)
		}
	}
	return out
}
