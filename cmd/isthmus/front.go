package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/internal/hostport"
)

const gatewayPort = "15008"

// front is what a cluster says of where its gateways are dialled.
type front struct {
	addresses []string // host:port
	why       string   // there is none
	pending   bool     // a load balancer may have one later
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
		f.pending, f.why = true, "its load balancer is pending"
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
	var err error
	if f.addresses, err = atNodes(ctx, k, port); err != nil {
		f.why = fmt.Sprintf("its nodes could not be asked for: %v", err)
	}
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
	return net.JoinHostPort(host, strconv.Itoa(int(port))), nil
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

// byNetwork reads values of link --address, NETWORK=ADDRESS.
func byNetwork(list []string) (map[string][]string, error) {
	out := map[string][]string{}
	for _, s := range list {
		network, a, ok := strings.Cut(s, "=")
		if !ok || network == "" {
			return nil, exit(exitUsage, fmt.Errorf("--address %.80q: write NETWORK=ADDRESS, such as west=203.0.113.7:15008", s))
		}
		more, err := dialledAll([]string{a})
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out[network], more[0]) {
			out[network] = append(out[network], more...)
		}
	}
	return out, nil
}

// writeAddresses gives cards the addresses that somebody has written for their networks.
func writeAddresses(cards, others []linkcard.Card, written map[string][]string) error {
	for network, list := range written {
		var names []string
		found := false
		for _, cs := range [][]linkcard.Card{cards, others} {
			for i := range cs {
				names = append(names, cs[i].Network)
				if cs[i].Network == network {
					cs[i].Addresses, found = list, true
				}
			}
		}
		if !found {
			return exit(exitUsage, fmt.Errorf("--address %.80q: no such network is linked here: they are %q", network, names))
		}
	}
	return nil
}

// awaitFronts looks until each cluster's load balancer has an address, for so long, and says on
// stderr what it waits for whenever that changes. A cluster that waiting does not help is a
// finding at once.
func awaitFronts(cmd *cobra.Command, k kubectl, contexts []string, cards []linkcard.Card, limit time.Duration) error {
	said, until := "", time.Now().Add(limit)
	for {
		var waits []string
		for i, c := range contexts {
			if len(cards[i].Addresses) > 0 {
				continue
			}
			f, err := frontOf(cmd.Context(), k.of(c))
			if err != nil {
				return err
			}
			switch {
			case len(f.addresses) > 0:
				cards[i].Addresses = f.addresses
			case !f.pending:
				return exit(exitFinding, fmt.Errorf("--wait: network %q gets no address by waiting: Service isthmus-gateway: %s: give --address %[1]s=ADDRESS; nothing was linked", cards[i].Network, f.why))
			default:
				waits = append(waits, fmt.Sprintf("the load balancer of network %q (context %s, Service isthmus-gateway)", cards[i].Network, c))
			}
		}
		if len(waits) == 0 {
			return nil
		}
		now := strings.Join(waits, ", ")
		if now != said {
			fmt.Fprintf(cmd.ErrOrStderr(), "isthmus: waiting for an address of %s\n", now)
			said = now
		}
		if !time.Now().Before(until) {
			return exit(exitFinding, fmt.Errorf("--wait: after %v without an address: %s: `kubectl describe service isthmus-gateway` there says why; without a load balancer give --address NETWORK=ADDRESS; nothing was linked", limit, now))
		}
		select {
		case <-cmd.Context().Done():
			return exit(exitFinding, cmd.Context().Err())
		case <-time.After(min(time.Second, time.Until(until))):
		}
	}
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
