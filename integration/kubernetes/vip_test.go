package kubernetes

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// startController starts the controller of a network on a host of its own, beside gateways
// that may be starting still. The definitions of imports and exports are there.
func (s *side) startController(client dynamic.Interface) *netspace.Process {
	w, t := s.world, s.world.t
	t.Helper()
	s.imports = client
	_, err := s.CoreV1().ServiceAccounts("isthmus-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "controller"}}, metav1.CreateOptions{})
	w.must(err)
	rights := controllerRole()
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "isthmus-system", Name: "controller"}}
	for _, o := range rights {
		switch o := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			o.Subjects = account
		case *rbacv1.RoleBinding:
			o.Subjects = account
		}
	}
	s.apply(t, rights...)
	host := s.network + "-controller"
	s.host(host, s.address(249))
	config := s.kubeconfigOf(s.token("controller", "controller-1", s.nodes[0].name))
	var gateways []string
	for i := range s.gateways {
		gateways = append(gateways, s.gatewayAddress(i)+":15008")
	}
	w.write(host+".yaml", fmt.Sprintf("name: controller-1\nnetwork: %s\ngateways: [%s]\ndiscovery: {kube: {kubeconfig: %q}}\nfederation: {networks: %[1]s-knows.yaml}\nadmin: {address: %[4]q}\n%s",
		s.network, strings.Join(gateways, ", "), config, adminAddress, commonConfig))
	p := &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, "controller"), "--config", host + ".yaml"}, Log: filepath.Join(w.Dir, host+".log")}
	w.launch(p)
	return p
}

// vips are the addresses of an import of demo, which the controller's leader has given it.
func (s *side) vips(t *testing.T, name string) []string {
	i, err := s.imports.Resource(mcs("serviceimports")).Namespace("demo").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return strings.Fields(addressesOf(i))
}

// A pod of east calls a service that is on west alone by the address of its import, and by
// its names in the cluster set and in the mesh, through SOCKS and through static listeners.
func TestAnImportedServiceIsCalledByItsAddressAndNames(t *testing.T) {
	w := newWorld(t, 2, "east", "west")
	s := &shop{world: w, east: w.side("east"), west: w.side("west")}
	s.client = s.east.run(t, "shop", "shop-1", s.east.nodes[0])
	s.client.say(t, corev1.ConditionTrue)
	s.west.expose(t, "hello", global, 8080)
	for i := range 2 {
		p := s.west.run(t, "hello", "hello-"+string(rune('a'+i)), s.west.nodes[i], 8080)
		p.say(t, corev1.ConditionTrue)
		s.servers = append(s.servers, p)
	}
	definitions := map[*side]dynamic.Interface{}
	for _, side := range w.sides {
		definitions[side] = side.definitions(t)
	}
	w.startGateways(1, "")
	s.west.startController(definitions[s.west])
	desk := s.east.startController(definitions[s.east])
	w.started()
	began := time.Now()
	eventually(t, 30*time.Second, "the import of hello on east has its addresses", func() bool { return len(s.east.vips(t, "hello")) == 2 })
	vips := s.east.vips(t, "hello")
	t.Logf("hello has %v on east after %v", vips, time.Since(began).Round(time.Millisecond))
	if !strings.HasPrefix(vips[0], "240.240.") || !strings.HasPrefix(vips[1], "2001:2:") {
		t.Fatalf("the import has %v, want an address of 240.240.0.0/16 and one of 2001:2::/48", vips)
	}
	to := []string{net.JoinHostPort(vips[0], "8080"), net.JoinHostPort(vips[1], "8080"), "hello.demo.svc.clusterset.local:8080", "hello.demo.mesh.internal:8080"}
	for i, destination := range to { // as static listeners also
		s.client.node.more += fmt.Sprintf("  - {workload: %s, listen: \"%s:%d\", to: %q}\n", s.client.uid, s.client.address, 9000+i, destination)
	}
	s.client.node.more = "outbound:\n" + s.client.node.more
	w.startNodes()
	w.started()
	for i, destination := range to {
		for how, call := range map[string]func() attempt{
			"SOCKS":      func() attempt { return s.client.call(destination) },
			"a listener": func() attempt { return s.client.callAt(fmt.Sprintf("%s:%d", s.client.address, 9000+i)) },
		} {
			seen := map[string]bool{}
			eventually(t, 30*time.Second, "both pods of west answer for "+destination+" by "+how, func() bool {
				if a := call(); a.err == nil {
					seen[a.pod] = true
				}
				return seen[s.servers[0].name] && seen[s.servers[1].name]
			})
		}
	}
	// From here on nothing fails, and what is nobody's address is refused.
	var all []attempt
	for range 20 {
		for _, destination := range to {
			all = append(all, s.client.call(destination))
		}
	}
	flawless(t, all)
	if a := s.client.call("240.240.255.254:8080"); a.err == nil {
		t.Errorf("%s answers for an address that no import has", a.pod)
	}

	// A controller that starts again changes nothing of it.
	s.must(desk.Stop(syscall.SIGTERM, time.Minute))
	s.must(w.Start(desk, w.Ready(desk.Host, adminAddress)))
	s.must(desk.Stop(syscall.SIGKILL, time.Minute))
	s.must(w.Start(desk, w.Ready(desk.Host, adminAddress)))
	if now := s.east.vips(t, "hello"); !slices.Equal(now, vips) {
		t.Errorf("with another controller the import has %v, want %v", now, vips)
	}
	if a := s.client.call(to[0]); a.err != nil {
		t.Errorf("with another controller: %v", a.err)
	}
	// One whose export is gone answers no more, and one that comes back does.
	s.west.label(t, "hello", `{"istio.io/global":null}`)
	took := eventually(t, 10*time.Second, "an address whose export is withdrawn is out of reach", func() bool { return s.client.call(to[0]).err != nil })
	t.Logf("label removed → address out of reach: %v", took.Round(time.Millisecond))
	s.west.label(t, "hello", `{"istio.io/global":"true"}`)
	eventually(t, 30*time.Second, "it is reached again", func() bool {
		now := s.east.vips(t, "hello")
		return len(now) == 2 && s.client.call(net.JoinHostPort(now[0], "8080")).err == nil
	})
	s.besideAService(t)
}

// besideAService gives east a Service of the imported one's name, for its own cluster: the name of the
// cluster leads there, the addresses and names of the import lead to west.
func (s *shop) besideAService(t *testing.T) {
	t.Helper()
	vips := s.east.vips(t, "hello")
	s.east.expose(t, "hello", nil, 8080)
	own := s.east.run(t, "hello", "hello-east", s.east.nodes[1], 8080)
	own.say(t, corev1.ConditionTrue)
	eventually(t, 30*time.Second, "the Service of east answers by the name of the cluster", func() bool { return s.client.call(hello).pod == own.name })
	for range 20 {
		if a := s.client.call(hello); a.err != nil || a.pod != own.name {
			t.Errorf("the Service of east: %s answers, %v", a.pod, a.err)
		}
		for _, to := range []string{net.JoinHostPort(vips[0], "8080"), net.JoinHostPort(vips[1], "8080"), "hello.demo.svc.clusterset.local:8080", "hello.demo.mesh.internal:8080"} {
			if a := s.client.call(to); a.err != nil || a.pod == own.name {
				t.Errorf("beside a Service of east, at %s: %s answers, %v", to, a.pod, a.err)
			}
		}
	}
	s.east.label(t, "hello", `{"istio.io/global":"true"}`)
	seen := map[string]bool{}
	eventually(t, 30*time.Second, "made global, east answers by the import's address", func() bool {
		seen[s.client.call(net.JoinHostPort(vips[0], "8080")).pod] = true
		return seen[own.name]
	})
}
