package kube

import (
	"cmp"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/mesh"
)

const system = "isthmus-system"

func frontService(kind corev1.ServiceType, edit func(*corev1.Service)) Event {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "isthmus-gateway"}, Spec: corev1.ServiceSpec{Type: kind, ClusterIPs: []string{"10.96.0.7"},
		Ports: []corev1.ServicePort{{Name: "status", Port: 15021, NodePort: 31021}, {Name: "hbone", Port: 443, TargetPort: intstr.FromInt32(15008), NodePort: 31008}}}}
	if edit != nil {
		edit(s)
	}
	trimmed, _ := trim(s)
	return Event{Services, system, s.Name, trimmed}
}

func gatewayPod(name, ip, node string, edit func(*corev1.Pod)) Event {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}, Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "gateway"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip}}
	if edit != nil {
		edit(p)
	}
	trimmed, _ := trim(p)
	return Event{Pods, system, name, trimmed}
}

func sliceOf(service string, pods ...string) Event {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: service + "-x", Labels: map[string]string{labelOfSlice: service}}, AddressType: discoveryv1.AddressTypeIPv4}
	for _, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: p, Namespace: system}})
	}
	trimmed, _ := trim(s)
	return Event{EndpointSlices, system, s.Name, trimmed}
}

func nodeAt(name string, addresses ...string) Event {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i := 0; i < len(addresses); i += 2 {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeAddressType(addresses[i]), Address: addresses[i+1]})
	}
	trimmed, _ := trim(n)
	return Event{Nodes, "", name, trimmed}
}

// Where other networks dial the gateways follows their Service, whatever its type; without
// an address there is a problem that says what to do.
func TestTheAddressOfItsServiceIsTheGateways(t *testing.T) {
	ingress := func(list ...corev1.LoadBalancerIngress) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = list }
	}
	pods := []Event{
		nodeAt("n1", "InternalIP", "10.0.0.1", "ExternalIP", "203.0.113.1", "Hostname", "n1"), nodeAt("n2", "InternalIP", "10.0.0.2", "InternalIP", "2001:db8::2"), nodeAt("n3", "ExternalIP", "203.0.113.3"),
		gatewayPod("gw-a", "10.1.0.1", "n1", nil), gatewayPod("gw-b", "10.1.0.2", "n2", nil), sliceOf("isthmus-gateway", "gw-a", "gw-b"),
	}
	onHost := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	hostPort := func(ports ...corev1.ContainerPort) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Ports: append([]corev1.ContainerPort{{Name: "operations", ContainerPort: 15020, HostPort: 31020}}, ports...)}}
			p.Status.HostIPs = []corev1.HostIP{{IP: "10.0.0.9"}, {IP: "2001:db8::9"}}
		}
	}
	onNodes := func(kind corev1.ServiceType, edit func(*corev1.Service)) []Event {
		port := hostPort(corev1.ContainerPort{Name: "hbone", ContainerPort: 15008, HostPort: 31508, Protocol: "TCP"})
		return append([]Event{frontService(kind, edit)}, pods[0], pods[1], gatewayPod("gw-a", "10.1.0.1", "n1", port), gatewayPod("gw-b", "10.1.0.2", "n2", port), pods[5])
	}
	for what, c := range map[string]struct {
		events  []Event
		want    []Address
		problem string
	}{
		"host ports of the pods":     {onNodes("ClusterIP", nil), []Address{{"10.0.0.2", 31508}, {"2001:db8::2", 31508}, {"203.0.113.1", 31508}}, ""},
		"of a pod whose node is new": {[]Event{frontService("", nil), gatewayPod("gw-a", "10.1.0.1", "n9", hostPort(corev1.ContainerPort{ContainerPort: 15008, HostPort: 15008})), sliceOf("isthmus-gateway", "gw-a")}, []Address{{"10.0.0.9", 15008}, {"2001:db8::9", 15008}}, ""},
		"of one that has no node yet": {[]Event{frontService("", nil), gatewayPod("gw-a", "", "", func(p *corev1.Pod) {
			hostPort(corev1.ContainerPort{ContainerPort: 15008, HostPort: 15008})(p)
			p.Status.HostIPs = nil
		}), sliceOf("isthmus-gateway", "gw-a")}, nil, "has no address outside the cluster"},
		"at one address of the node":   {append(onNodes("ClusterIP", nil)[:3], gatewayPod("gw-a", "10.1.0.1", "n1", hostPort(corev1.ContainerPort{ContainerPort: 15008, HostPort: 31508, HostIP: "203.0.113.99"})), sliceOf("isthmus-gateway", "gw-a")), []Address{{"203.0.113.99", 31508}}, ""},
		"of a port for something else": {append(onNodes("ClusterIP", nil)[:3], gatewayPod("gw-a", "10.1.0.1", "n1", hostPort(corev1.ContainerPort{ContainerPort: 15008, HostPort: 31508, Protocol: "UDP"})), sliceOf("isthmus-gateway", "gw-a")), nil, "or its pods a hostPort"},
		"of the node's loopback":       {append(onNodes("ClusterIP", nil)[:3], gatewayPod("gw-a", "10.1.0.1", "n1", hostPort(corev1.ContainerPort{ContainerPort: 15008, HostPort: 31508, HostIP: "127.0.0.1"})), sliceOf("isthmus-gateway", "gw-a")), nil, "or its pods a hostPort"},
		"external IPs before them":     {onNodes("ClusterIP", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.8"} }), []Address{{"203.0.113.8", 443}}, ""},
		"node ports before them":       {onNodes("NodePort", nil), []Address{{"10.0.0.2", 31008}, {"2001:db8::2", 31008}, {"203.0.113.1", 31008}}, ""},
		"a load balancer before them":  {onNodes("LoadBalancer", ingress(corev1.LoadBalancerIngress{IP: "203.0.113.7"})), []Address{{"203.0.113.7", 443}}, ""},
		"also while it is pending":     {onNodes("LoadBalancer", nil), nil, "pending"},
		"none":                         {nil, nil, "there is no Service isthmus-system/isthmus-gateway"},
		"a load balancer":              {[]Event{frontService("LoadBalancer", ingress(corev1.LoadBalancerIngress{IP: "203.0.113.7"}))}, []Address{{"203.0.113.7", 443}}, ""},
		"several addresses":            {[]Event{frontService("LoadBalancer", ingress(corev1.LoadBalancerIngress{IP: "203.0.113.9"}, corev1.LoadBalancerIngress{IP: "2001:db8::7"}, corev1.LoadBalancerIngress{IP: "203.0.113.7"}))}, []Address{{"2001:db8::7", 443}, {"203.0.113.7", 443}, {"203.0.113.9", 443}}, ""},
		"a host name":                  {[]Event{frontService("LoadBalancer", ingress(corev1.LoadBalancerIngress{Hostname: "a1.elb.example.com."}))}, []Address{{"a1.elb.example.com", 443}}, ""},
		"a pending one":                {[]Event{frontService("LoadBalancer", nil)}, nil, "pending"},
		"an odd one":                   {[]Event{frontService("LoadBalancer", ingress(corev1.LoadBalancerIngress{IP: "0.0.0.0"}, corev1.LoadBalancerIngress{Hostname: "a b"}))}, nil, "pending"},
		"node ports":                   {append([]Event{frontService("NodePort", nil)}, pods...), []Address{{"10.0.0.2", 31008}, {"2001:db8::2", 31008}, {"203.0.113.1", 31008}}, ""},
		"node ports without pods":      {[]Event{frontService("NodePort", nil)}, nil, "no node with a gateway"},
		"a cluster IP":                 {append([]Event{frontService("ClusterIP", nil)}, pods...), nil, "has no address outside the cluster"},
		"external IPs":                 {[]Event{frontService("ClusterIP", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.8"} })}, []Address{{"203.0.113.8", 443}}, ""},
		"pods on their hosts": {[]Event{frontService("ClusterIP", nil), pods[0], gatewayPod("gw-a", "10.0.0.1", "n1", onHost), sliceOf("isthmus-gateway", "gw-a")},
			[]Address{{"203.0.113.1", 15008}}, ""},
		"on their hosts with a port that the API server writes as a hostPort": {[]Event{frontService("ClusterIP", nil), pods[0], gatewayPod("gw-a", "10.0.0.1", "n1", func(p *corev1.Pod) {
			onHost(p)
			hostPort(corev1.ContainerPort{ContainerPort: 15008, HostPort: 15008})(p)
		}), sliceOf("isthmus-gateway", "gw-a")}, []Address{{"203.0.113.1", 15008}}, ""},
		"no port": {[]Event{frontService("LoadBalancer", func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 53, Protocol: "UDP"}} })}, nil, "no TCP port"},
	} {
		cluster := NewCluster("west", "istio-system")
		cluster.front.service = parseName("isthmus-system/isthmus-gateway")
		cluster.Apply(c.events...)
		got, problem := cluster.addresses()
		if !reflect.DeepEqual(got, c.want) || (problem == "") != (c.problem == "") || !strings.Contains(problem, c.problem) {
			t.Errorf("%s: %v, %q; want %v, %q", what, got, problem, c.want, c.problem)
		}
	}
}

// QUIC is dialed at the load balancer of its own Service, if it has one; changes of either Service are signalled.
func TestQUICServiceHasItsOwnAddress(t *testing.T) {
	udp := func(address string) Event {
		e := frontService("LoadBalancer", func(s *corev1.Service) {
			s.Name = "isthmus-gateway-quic"
			s.Spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 443, TargetPort: intstr.FromInt32(15008)}, {Name: "quic-hbone", Port: 15008, Protocol: "UDP", TargetPort: intstr.FromInt32(15008)}}
			if address != "" {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
			}
		})
		return e
	}
	tcp := frontService("LoadBalancer", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}}
	})
	gone := Event{Services, system, "isthmus-gateway-quic", nil}
	for _, quic := range []string{"", system + "/isthmus-gateway-quic"} {
		s := &Source{cluster: NewCluster("west", "istio-system")}
		s.SetFront(system+"/isthmus-gateway", quic, "")
		for i, step := range []struct {
			event   Event
			want    []Address
			problem string
		}{
			{tcp, nil, "there is no Service isthmus-system/isthmus-gateway-quic: create it, or correct address.quicService"},
			{udp(""), nil, "pending"},
			{udp("203.0.113.8"), []Address{{"203.0.113.8", 15008}}, ""},
			{udp("203.0.113.9"), []Address{{"203.0.113.9", 15008}}, ""},
			{gone, nil, "there is no Service"},
		} {
			s.cluster.Apply(step.event)
			s.front.set(s.cluster)
			select {
			case <-s.FrontChanged():
				if quic == "" && i > 0 {
					t.Errorf("step %d: a change of another Service is signalled", i)
				}
			default:
				if quic != "" || i == 0 {
					t.Errorf("step %d: no change is signalled", i)
				}
			}
			if quic == "" {
				step.want, step.problem = nil, ""
			}
			if got, problem := s.FrontQUIC(); !reflect.DeepEqual(got, step.want) || (problem == "") != (step.problem == "") || !strings.Contains(problem, step.problem) {
				t.Errorf("quic %q, step %d: %v, %q; want %v, %q", quic, i, got, problem, step.want, step.problem)
			}
			if got, problem := s.Front(); !reflect.DeepEqual(got, []Address{{"203.0.113.7", 443}}) || problem != "" {
				t.Errorf("quic %q, step %d: TCP at %v, %q", quic, i, got, problem)
			}
		}
	}
}

// By a hostPort each gateway is reached at its own node: it says no other's.
func TestAGatewayWithAHostPortSaysItsOwnNode(t *testing.T) {
	port := func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 15008, HostPort: 31508}}}}
	}
	cluster := NewCluster("west", "istio-system")
	cluster.front.service, cluster.front.self = parseName("isthmus-system/isthmus-gateway"), "gw-b"
	cluster.Apply(frontService("ClusterIP", nil), nodeAt("n1", "InternalIP", "10.0.0.1"), nodeAt("n2", "InternalIP", "10.0.0.2"), nodeAt("n3", "InternalIP", "10.0.0.3"),
		gatewayPod("gw-a", "10.1.0.1", "n1", port), sliceOf("isthmus-gateway", "gw-a"))
	for _, step := range []struct {
		event Event
		want  []Address
	}{
		{gatewayPod("gw-b", "10.1.0.2", "n2", port), []Address{{"10.0.0.2", 31508}}}, // before it is ready
		{sliceOf("isthmus-gateway", "gw-a", "gw-b"), []Address{{"10.0.0.2", 31508}}},
		{nodeAt("n2", "InternalIP", "10.0.0.2", "ExternalIP", "203.0.113.2"), []Address{{"203.0.113.2", 31508}}},
		{gatewayPod("gw-b", "10.0.0.2", "n2", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), []Address{{"203.0.113.2", 15008}}},
		{gatewayPod("gw-b", "10.0.0.2", "n2", func(p *corev1.Pod) { // as the API server writes it where the pod lists the port
			p.Spec.HostNetwork = true
			p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 15008, HostPort: 15008}}}}
		}), []Address{{"203.0.113.2", 15008}}},
		{gatewayPod("gw-b", "10.1.0.2", "n2", nil), nil}, // without a hostPort
	} {
		cluster.Apply(step.event)
		if got, problem := cluster.addresses(); !reflect.DeepEqual(got, step.want) || (problem == "") != (len(step.want) > 0) {
			t.Errorf("%v, %q; want %v", got, problem, step.want)
		}
	}
}

// Without a file the gateways of the network are the pods of their Service, each by its own
// name and at its own address, whatever order objects come in.
func TestGatewaysAreThePodsOfTheirService(t *testing.T) {
	cluster := NewCluster("west", "istio-system")
	cluster.front.gateways = parseName("isthmus-system/isthmus-gateway-nodes")
	b := discovery.NewBuilder(0)
	apply := func(events ...Event) []string {
		b.Apply(cluster.Apply(events...)...)
		snap, _, _ := b.Commit()
		var out []string
		for _, g := range snap.Gateways("west") {
			out = append(out, g.Name+" "+g.Address.String()+" "+g.Identity.Path())
		}
		return out
	}
	a, bee := "gw-a 10.1.0.1:15008 /ns/isthmus-system/sa/gateway", "gw-b 10.1.0.2:15008 /ns/isthmus-system/sa/gateway"
	for i, step := range []struct {
		events []Event
		want   []string
	}{
		{[]Event{sliceOf("isthmus-gateway-nodes", "gw-a", "gw-b")}, nil},
		{[]Event{gatewayPod("gw-a", "", "n1", nil)}, nil},
		{[]Event{gatewayPod("gw-a", "10.1.0.1", "n1", nil), gatewayPod("other", "10.1.0.9", "n1", nil)}, []string{a}},
		{[]Event{gatewayPod("gw-b", "10.1.0.2", "n1", nil)}, []string{a, bee}},
		{[]Event{gatewayPod("gw-a", "10.1.0.1", "n1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })}, []string{bee}},
		{[]Event{{Pods, system, "gw-a", nil}, sliceOf("isthmus-gateway-nodes", "gw-b")}, []string{bee}},
		{[]Event{sliceOf("isthmus-gateway", "gw-b"), {EndpointSlices, system, "isthmus-gateway-nodes-x", nil}}, nil},
	} {
		if got := apply(step.events...); !reflect.DeepEqual(got, step.want) {
			t.Errorf("step %d: %v; want %v", i, got, step.want)
		}
	}
}

// Whatever order nodes, pods and Services change in, each part of a gateway's locality is the
// label of the Service that other networks dial, else of the Service that lists the gateways,
// else of the gateway's node.
func TestGatewayLocalityFollowsLabels(t *testing.T) {
	keys := []string{labelRegion, labelZone, labelSubzone}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		cluster, b := NewCluster("west", "istio-system"), discovery.NewBuilder(0)
		cluster.front.gateways, cluster.front.service = parseName(system+"/isthmus-gateway-nodes"), parseName(system+"/isthmus-gateway")
		services, nodes, pods := map[string]map[string]string{}, map[string]map[string]string{}, map[string]string{}
		for step := range 40 {
			labels := map[string]string{}
			for i, k := range keys {
				if rng.IntN(2) == 0 {
					labels[k] = []string{"", "a", "b"}[rng.IntN(3)] + string(rune('x'+i))
				} else if rng.IntN(4) == 0 {
					labels[k] = ""
				}
			}
			var e Event
			switch rng.IntN(4) {
			case 0:
				n := []string{"isthmus-gateway", "isthmus-gateway-nodes"}[rng.IntN(2)]
				if e = frontService("ClusterIP", func(s *corev1.Service) { s.Name, s.Labels = n, labels }); rng.IntN(3) == 0 {
					e.Object = nil
					labels = nil
				}
				services[n] = labels
			case 1:
				n := []string{"n1", "n2", "n3"}[rng.IntN(3)]
				if e = nodeAt(n); rng.IntN(3) == 0 {
					e.Object = nil
					labels = nil
				} else {
					e.Object.(*corev1.Node).Labels = labels
				}
				nodes[n] = labels
			case 2:
				p := []string{"gw-a", "gw-b"}[rng.IntN(2)]
				pods[p] = []string{"n1", "n2"}[rng.IntN(2)]
				e = gatewayPod(p, map[string]string{"gw-a": "10.1.0.1", "gw-b": "10.1.0.2"}[p], pods[p], nil)
			case 3:
				e = sliceOf("isthmus-gateway-nodes", "gw-a", "gw-b")
			}
			b.Apply(cluster.Apply(e)...)
			snap, _, _ := b.Commit()
			for _, g := range snap.Gateways("west") {
				var want [3]string
				for i, k := range keys {
					want[i] = cmp.Or(services["isthmus-gateway"][k], services["isthmus-gateway-nodes"][k], nodes[pods[g.Name]][k])
				}
				if got := g.Locality; got != (mesh.Locality{Region: want[0], Zone: want[1], Subzone: want[2]}) {
					t.Fatalf("seed %d, step %d: gateway %s on node %s has %+v; want %v", seed, step, g.Name, pods[g.Name], got, want)
				}
			}
		}
	}
}
