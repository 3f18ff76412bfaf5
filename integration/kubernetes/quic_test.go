package kubernetes

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/testlb"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

// A load balancer of UDP alone has another address than that of TCP. Node proxies of another network dial it there,
// and follow it when it moves.
func TestQUICServiceAddressIsPublished(t *testing.T) {
	c := startCluster(t)
	clusterRole, binding := role()
	c.apply(t, clusterRole, binding, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}})
	m := meshtest.New(t)
	m.Networks("east", "west")
	m.Gateway("east", "gw-1")
	m.Gateway("west", "gw-1")
	host := m.Service("hello", 80, 8080)
	m.Pod("west", "west-1", "hello-west", "hello").App(8080)
	call := m.Pod("east", "east-1", "shop-1").Outbound(host + ":80")
	at := m.GatewayAt("west", "gw-1")

	balance := func(name string, protocol corev1.Protocol, address netip.Addr) {
		t.Helper()
		services := c.CoreV1().Services(system)
		s, err := services.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			c.apply(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}, Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Name: "hbone", Port: 15008, Protocol: protocol}}}})
			if s, err = services.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address.String()}}
		if _, err := services.UpdateStatus(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	udp := func() (*testlb.UDP, netip.Addr) {
		t.Helper()
		front := netip.AddrPortFrom(m.Addr(), 15008)
		u, err := testlb.ServeUDP(front, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(u.Close)
		return u, front.Addr()
	}
	balance("isthmus-gateway", corev1.ProtocolTCP, at.Addr())
	first, address := udp()
	balance("isthmus-gateway-quic", corev1.ProtocolUDP, address)

	files := map[string]string{"east": m.WriteOwn("east"), "west": m.WriteOwn("west")}
	kubeconfig := c.user(t, c.config.Host, "gateway")
	m.EachGateway = func(g *gateway.Config) {
		g.Discovery.File, g.Federation.Networks = files[g.Network], m.LinkFile(g.Network)
		if g.Network == "west" {
			g.Discovery.Kube.Kubeconfig, g.Address.Service, g.Address.QUICService = kubeconfig, system+"/isthmus-gateway", system+"/isthmus-gateway-quic"
			g.Lines.Transport = lines.Auto
		}
	}
	m.EachNode = func(n *nodeproxy.Config) {
		n.Discovery.File, n.Federation.Networks, n.Lines.Transport = files[n.Network], m.LinkFile(n.Network), lines.QUIC
	}
	m.Start()
	hello := func() bool { _, err := meshtest.Hello(call); return err == nil }
	eventually(t, 20*time.Second, "hello is called by way of the UDP address", func() bool { return hello() && first.Packets() > 0 })

	second, address := udp()
	balance("isthmus-gateway-quic", corev1.ProtocolUDP, address)
	first.Close()
	eventually(t, time.Minute, "hello is called by way of the next address", func() bool { return hello() && second.Packets() > 0 })
}
