package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// gatewayPod is what is read of a gateway's pod.
type gatewayPod struct {
	Spec struct {
		NodeName    string
		HostNetwork bool
		Containers  []struct{ Ports []hostPort }
	}
}

type hostPort struct {
	ContainerPort, HostPort int
	HostIP                  string
}

// opened is the port of its node that leads to the pod, and where that is not all of the node's
// addresses, at which.
func (p *gatewayPod) opened() (hostPort, bool) {
	for _, c := range p.Spec.Containers {
		for _, x := range c.Ports {
			if x.ContainerPort == mesh.HBONEPort && x.HostPort > 0 {
				return x, true
			}
		}
	}
	return hostPort{HostPort: mesh.HBONEPort}, p.Spec.HostNetwork
}

// atNodes are the addresses of the nodes that gateways run on, as these tell them themselves: with
// the node port of their Service, or if that is 0 with the hostPort of their pods.
func atNodes(ctx context.Context, k kubectl, nodePort int) (out []string, err error) {
	b, err := k.run(ctx, nil, "get", "pods", "--namespace", k.namespace, "--selector", "app.kubernetes.io/name=isthmus-gateway", "--output", "json", "--ignore-not-found")
	if err != nil {
		return nil, err
	}
	var pods struct{ Items []gatewayPod }
	if len(b) > 0 {
		if err := json.Unmarshal(b, &pods); err != nil {
			return nil, exit(exitStart, fmt.Errorf("pods of context %q: %w", k.context, err))
		}
	}
	for _, p := range pods.Items {
		at := hostPort{HostPort: nodePort}
		if nodePort == 0 {
			var open bool
			if at, open = p.opened(); !open {
				continue
			}
		}
		hosts := []string{at.HostIP}
		if a, err := netip.ParseAddr(at.HostIP); err != nil || a.IsUnspecified() {
			if hosts, err = nodeAddresses(ctx, k, p.Spec.NodeName); err != nil {
				return nil, err
			}
		}
		for _, h := range hosts {
			out = append(out, net.JoinHostPort(h, strconv.Itoa(at.HostPort)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// nodeAddresses are the external addresses of a node, or else the internal ones.
func nodeAddresses(ctx context.Context, k kubectl, name string) (out []string, err error) {
	if name == "" {
		return nil, nil // the pod is not scheduled yet
	}
	var n struct {
		Status struct {
			Addresses []struct{ Type, Address string }
		}
	}
	if _, err := k.get(ctx, "node", name, &n); err != nil {
		return nil, err
	}
	for _, kind := range []string{"ExternalIP", "InternalIP"} {
		for _, a := range n.Status.Addresses {
			if _, err := netip.ParseAddr(a.Address); a.Type == kind && err == nil {
				out = append(out, a.Address)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	return out, nil
}
