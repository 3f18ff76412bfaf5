package main

import (
	"context"
	"slices"
	"strings"
)

// ciliumNamespace is where Cilium's chart is installed by default.
const ciliumNamespace = "kube-system"

// socketLB looks whether Cilium rewrites cluster IPs in the sockets of pods, before a packet meets
// the rules that capture it. It does so unless it is limited to the host's network namespace.
func (c *checkup) socketLB(ctx context.Context, x *checkedCluster, p *place) error {
	if !x.captures {
		return nil
	}
	k, m := p.k, configMap{}
	k.namespace = ciliumNamespace
	there, err := k.get(ctx, "configmap", "cilium-config", &m)
	if may, err := p.may(err, checkSocketLB.code); !may || !there {
		return err
	}
	c.add(checkSocketLB, x.where, checkWarning, rewritesSockets(m.Data))
	return nil
}

// rewritesSockets returns which settings of Cilium rewrite cluster IPs in the sockets of pods;
// empty if none does. kube-proxy-replacement turns the socket load balancer on; before Cilium
// 1.12 enable-host-reachable-services did.
func rewritesSockets(config map[string]string) string {
	if config["bpf-lb-sock-hostns-only"] == "true" {
		return ""
	}
	var on []string
	for key, values := range map[string][]string{"bpf-lb-sock": {"true"}, "enable-host-reachable-services": {"true"}, "kube-proxy-replacement": {"true", "strict"}} {
		if slices.Contains(values, config[key]) {
			on = append(on, key+": "+config[key])
		}
	}
	if len(on) == 0 {
		return ""
	}
	slices.Sort(on)
	return "cilium-config has " + strings.Join(on, ", ") + ", and not bpf-lb-sock-hostns-only: true: cluster IPs are replaced by addresses of pods in connect(2), so that DNS queries and connections of pods to Services are not captured"
}
