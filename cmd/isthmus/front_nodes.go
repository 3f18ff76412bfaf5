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
	Metadata struct{ Name string }
	Spec     struct {
		NodeName    string
		HostNetwork bool
		Containers  []struct{ Ports []hostPort }
	}
	Status struct {
		Conditions []struct{ Type, Status, Message string }
	}
}

// unscheduled says that the pod is on no node yet, and why.
func (p *gatewayPod) unscheduled() string {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status != "True" && c.Message != "" {
			return fmt.Sprintf("pod %s is not scheduled: %s", plain(p.Metadata.Name), plain(c.Message))
		}
	}
	return fmt.Sprintf("pod %s is not scheduled", plain(p.Metadata.Name))
}

// gatewayPods selects the pods of gateways.
const gatewayPods = "app.kubernetes.io/name=isthmus-gateway"

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
// the node port of their Service, or if that is 0 with the hostPort of their pods; and which of these
// are on no node yet, or on one without an address.
func atNodes(ctx context.Context, k kubectl, nodePort int) (out, waits []string, err error) {
	pods, err := gatewaysOf(ctx, k)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range pods {
		at := hostPort{HostPort: nodePort}
		if nodePort == 0 {
			var open bool
			if at, open = p.opened(); !open {
				continue
			}
		}
		if p.Spec.NodeName == "" {
			waits = append(waits, p.unscheduled())
			continue
		}
		hosts := []string{at.HostIP}
		if a, err := netip.ParseAddr(at.HostIP); err != nil || a.IsUnspecified() {
			if hosts, err = nodeAddresses(ctx, k, p.Spec.NodeName); err != nil {
				return nil, nil, err
			}
		}
		if len(hosts) == 0 {
			waits = append(waits, fmt.Sprintf("node %s of pod %s has no address", plain(p.Spec.NodeName), plain(p.Metadata.Name)))
		}
		for _, h := range hosts {
			out = append(out, net.JoinHostPort(h, strconv.Itoa(at.HostPort)))
		}
	}
	slices.Sort(out)
	return slices.Compact(out), waits, nil
}

// gatewaysOf are the pods of gateways, or while their Deployment has made none, the one that it will.
func gatewaysOf(ctx context.Context, k kubectl) ([]gatewayPod, error) {
	b, err := k.run(ctx, nil, "get", "pods", "--namespace", k.namespace, "--selector", gatewayPods, "--output", "json", "--ignore-not-found")
	if err != nil {
		return nil, err
	}
	var pods struct{ Items []gatewayPod }
	if len(b) > 0 {
		if err := json.Unmarshal(b, &pods); err != nil {
			return nil, exit(exitStart, fmt.Errorf("pods of context %q: %w", k.context, err))
		}
	}
	if len(pods.Items) > 0 {
		return pods.Items, nil
	}
	var d struct {
		Spec struct {
			Replicas *int
			Template gatewayPod
		}
	}
	there, err := k.get(ctx, "deployment", "isthmus-gateway", &d)
	if err != nil || !there || d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
		return nil, err
	}
	d.Spec.Template.Metadata.Name = "of Deployment isthmus-gateway"
	d.Spec.Template.Spec.NodeName = ""
	return []gatewayPod{d.Spec.Template}, nil
}

// nodeAddresses are the external addresses of a node, or else the internal ones.
func nodeAddresses(ctx context.Context, k kubectl, name string) (out []string, err error) {
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
