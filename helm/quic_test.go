package helm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// opened returns where objects name port 15008 and its protocols, without the Service isthmus-gateway-nodes: Services,
// "pod" for container ports, "host" for host ports and "policy" for the NetworkPolicy of gateways.
func opened(objects []object) map[string]string {
	out := map[string][]string{}
	add := func(where string, of any, key string) {
		ports, _ := of.([]any)
		for _, p := range ports {
			if number := dig(p, key); number != nil && number != 15020 {
				protocol, _ := dig(p, "protocol").(string)
				if protocol == "" {
					protocol = "TCP"
				}
				out[where] = append(out[where], fmt.Sprintf("%v/%s", number, protocol))
			}
		}
	}
	for _, o := range objects {
		switch {
		case o.Kind == "Service" && strings.HasPrefix(o.Metadata.Name, "isthmus-gateway") && dig(o.all, "spec", "clusterIP") != "None":
			add(o.Metadata.Name, dig(o.all, "spec", "ports"), "port")
			if o.Spec["type"] == "NodePort" {
				add("node", dig(o.all, "spec", "ports"), "nodePort")
			}
		case o.Kind == "Deployment" && o.Metadata.Name == "isthmus-gateway":
			ports := dig(o.all, "spec", "template", "spec", "containers", 0, "ports")
			add("pod", ports, "containerPort")
			add("host", ports, "hostPort")
		case o.Kind == "NetworkPolicy" && o.Metadata.Name == "isthmus-gateway":
			add("policy", dig(o.all, "spec", "ingress", 0, "ports"), "port")
		}
	}
	joined := map[string]string{}
	for where, ports := range out {
		joined[where] = strings.Join(ports, " ")
	}
	return joined
}

// TCP comes first: isthmus link reads the node port of the first port.
func TestQUICOpensUDPOfSameNumber(t *testing.T) {
	const tcp, both = "15008/TCP", "15008/TCP 15008/UDP"
	for _, set := range cases(t) {
		for where, ports := range opened(rendered(t, set)) {
			if !strings.HasPrefix(set, "quic") && strings.Contains(ports, "UDP") {
				t.Errorf("%s: lines.transport is tcp, and %s has %s", set, where, ports)
			}
		}
	}
	for set, want := range map[string]map[string]string{
		"quic":         {"isthmus-gateway": both, "node": "31508/TCP 31508/UDP", "pod": both, "policy": both},
		"quicseparate": {"isthmus-gateway": tcp, "isthmus-gateway-quic": "15008/UDP", "pod": both, "policy": both},
	} {
		if got := opened(rendered(t, set)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: ports %v, want %v", set, got, want)
		}
	}
	for set, want := range map[string]map[string]string{
		"network=west,gateway.config.lines.transport=auto":                                                         {"isthmus-gateway": both, "pod": both, "policy": both},
		"network=west,gateway.config.lines.transports.east=auto":                                                   {"isthmus-gateway": both, "pod": both, "policy": both},
		"network=west,gateway.config.lines.transport=quic,gateway.service.quic=none":                               {"isthmus-gateway": tcp, "pod": both, "policy": both},
		"network=west,gateway.config.lines.transport=quic,gateway.service.type=ClusterIP,gateway.hostPort=31508":   {"isthmus-gateway": both, "pod": both, "host": "31508/TCP 31508/UDP", "policy": both},
		"network=west,gateway.service.quic=separate":                                                               {"isthmus-gateway": tcp, "pod": tcp, "policy": tcp},
		"network=west,gateway.config.lines.transport=quic,gateway.service.quic=none,gateway.service.type=NodePort": {"isthmus-gateway": tcp, "pod": both, "policy": both},
		"network=west,gateway.config.lines.congestionControl=cubic,gateway.service.quic=shared,gateway.replicas=3": {"isthmus-gateway": tcp, "pod": tcp, "policy": tcp},
	} {
		text, err := render(t, "--set", set)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rendered.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := opened(objectsOf(t, file)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: ports %v, want %v", set, got, want)
		}
	}
}

// Both Services are of the same pods, and differ in their ports and their annotations alone.
func TestSeparateServiceIsOfTheSameGateways(t *testing.T) {
	objects := rendered(t, "quicseparate")
	tcp, udp := find(t, objects, "Service", "isthmus-gateway"), find(t, objects, "Service", "isthmus-gateway-quic")
	for _, key := range []string{"type", "selector", "externalTrafficPolicy", "loadBalancerSourceRanges", "ipFamilyPolicy"} {
		if a, b := fmt.Sprint(tcp.Spec[key]), fmt.Sprint(udp.Spec[key]); a != b {
			t.Errorf("%s of the Services is %s and %s", key, a, b)
		}
	}
	if got := fmt.Sprint(dig(udp.all, "metadata", "annotations")); got != "map[example.org/name:udp metallb.io/allow-shared-ip:isthmus]" {
		t.Errorf("annotations of isthmus-gateway-quic: %s", got)
	}
	if got := fmt.Sprint(dig(tcp.all, "metadata", "annotations")); got != "map[example.org/name:tcp metallb.io/allow-shared-ip:isthmus]" {
		t.Errorf("annotations of isthmus-gateway: %s", got)
	}
}
