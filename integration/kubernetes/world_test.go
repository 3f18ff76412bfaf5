package kubernetes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

const (
	adminAddress = "127.0.0.1:15000"
	socksPort    = "15080"
	segment      = "all"
	drainTime    = 5 * time.Second
)

// world is clusters with nodes, each in network namespaces of its own: what is of one
// reaches of another the addresses of its gateways alone.
type world struct {
	*netspace.Space
	t     *testing.T
	bin   string
	sides []*side                  // in the order of their numbers
	cards map[string]linkcard.Card // of networks that have trust domains of their own; nil: all have one
	names string                   // resolv.conf of the gateways and node proxies; "": that of the machine

	starting []chan error
}

// side is one cluster and the network that it is.
type side struct {
	*cluster
	world    *world
	network  string
	number   int
	api      string // host of the API server
	gateways []*netspace.Process
	balanced []string // hosts at which its load balancer is; none: its gateways are dialed at their own addresses
	nodes    []*node
	pods     map[string]*demoPod // by name
	next     int                 // pod address
	imports  dynamic.Interface   // of a side with a controller
}

// node is a host with a node proxy and the pods that run there.
type node struct {
	name, address string
	side          *side
	proxy         *netspace.Process
	more          string // of its configuration
}

// newWorld starts clusters with nodes, and with what gateways and node proxies that are
// started by hand need of them, and ends all of it with the test.
func newWorld(t *testing.T, nodes int, networks ...string) *world {
	t.Helper()
	w := newClusters(t, nodes, "", networks...)
	w.isthmus("ca", "init", "--dir", "ca", "--trust-domain", "cluster.local")
	for _, s := range w.sides {
		w.isthmus("network", "init", "--dir", "key-"+s.network, "--network", s.network)
		s.furnish()
	}
	return w
}

// newClusters starts clusters with nodes, in which nothing else is, and ends them with the
// test. The controllers, by commas, run beside those that every cluster has.
func newClusters(t *testing.T, nodes int, controllers string, networks ...string) *world {
	t.Helper()
	needComponents(t)
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root: run make test-kubernetes as root")
	}
	space, err := netspace.New("kube")
	t.Cleanup(func() {
		if err := space.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs("../../build/kubernetes/bin") // what is up to date there is not linked again
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Space: space, t: t, bin: bin}
	t.Cleanup(w.showLogs)
	build := exec.Command("go", "build", "-trimpath", "-o", w.bin+"/", "./cmd/...")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0") // as in the images
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the binaries: %v\n%s", err, out)
	}
	w.must(space.Segment(segment, nil))
	for i, n := range networks {
		s := &side{world: w, network: n, number: i + 1, api: n + "-api", pods: map[string]*demoPod{}, next: 100}
		w.sides = append(w.sides, s)
		s.host(s.api, s.address(250))
		for k := range nodes {
			n := &node{name: fmt.Sprintf("%s-%d", n, k+1), address: s.address(11 + k), side: s}
			s.host(n.name, n.address)
			s.nodes = append(s.nodes, n)
		}
		s.cluster = startClusterAt(t, place{space: space, host: s.api, address: s.address(250), controllers: controllers}, []string{"2379", "2380", "6443", "10257"})
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// showLogs prints the ends of all logs of a test that has failed.
func (w *world) showLogs() {
	if !w.t.Failed() {
		return
	}
	logs, _ := filepath.Glob(filepath.Join(w.Dir, "*.log"))
	for _, l := range logs {
		w.t.Logf("the end of %s:\n%s", filepath.Base(l), netspace.Tail(l))
	}
}

func (w *world) isthmus(args ...string) string {
	w.t.Helper()
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	cmd.Dir, cmd.Stderr = w.Dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		w.t.Fatalf("isthmus %v: %v", args, err)
	}
	return string(out)
}

// write writes a file of the world in one step.
func (w *world) write(name, text string) {
	w.t.Helper()
	w.must(replace(filepath.Join(w.Dir, name), text))
}

func replace(file, text string) error {
	next := file + ".next"
	return errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, file))
}

func (w *world) side(network string) *side {
	i := slices.IndexFunc(w.sides, func(s *side) bool { return s.network == network })
	return w.sides[i]
}

// address is one of the network's.
func (s *side) address(n int) string { return fmt.Sprintf("10.71.%d.%d", s.number, n) }

// gatewayAddress is where other networks reach gateway i, from 0.
func (s *side) gatewayAddress(i int) string { return s.address(1 + i) }

// maxGateways of a network have addresses that others reach.
const maxGateways = 4

// host makes a host of the network, which reaches of others the addresses of gateways
// alone. Gateways answer whoever reaches them.
func (s *side) host(name string, addresses ...string) {
	s.world.t.Helper()
	s.world.must(s.world.Host(segment, name, addresses...))
	s.world.must(s.routes(name))
}

// routes leads a host of the network to what it may reach of others.
func (s *side) routes(name string) (err error) {
	for n := range 4 {
		if n+1 == s.number {
			continue
		}
		err = errors.Join(err, s.world.IP(name, "route", "add", "unreachable", fmt.Sprintf("10.71.%d.0/24", n+1)))
		for g := range maxGateways {
			err = errors.Join(err, s.world.IP(name, "route", "add", fmt.Sprintf("10.71.%d.%d/32", n+1, 1+g), "dev", "eth0"))
		}
	}
	return err
}

// furnish makes what every cluster has: namespaces, accounts, the gateway's role, nodes.
func (s *side) furnish() {
	t := s.world.t
	t.Helper()
	role, binding := role()
	binding.Subjects[0].Kind, binding.Subjects[0].APIGroup, binding.Subjects[0].Namespace = "ServiceAccount", "", "isthmus-system"
	s.apply(t, role, binding,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system", Labels: map[string]string{"topology.istio.io/network": s.network}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-system"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo", Labels: map[string]string{"istio.io/dataplane-mode": "ambient"}}})
	for _, account := range []string{"gateway", "nodeproxy"} {
		_, err := s.CoreV1().ServiceAccounts("isthmus-system").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		s.world.must(err)
	}
	for _, n := range s.nodes {
		s.apply(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"topology.kubernetes.io/region": s.network, "topology.kubernetes.io/zone": s.network + "-a"}}})
	}
}

// token writes the token of a service account, bound to a pod of that account, and
// returns its path.
func (s *side) token(account, pod, node string, audiences ...string) string {
	t := s.world.t
	t.Helper()
	made, err := s.CoreV1().Pods("isthmus-system").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod, Labels: map[string]string{"app": account}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "isthmus-" + account}}}}, metav1.CreateOptions{})
	s.world.must(err)
	r, err := s.CoreV1().ServiceAccounts("isthmus-system").CreateToken(t.Context(), account, &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{Audiences: audiences,
		BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod, UID: made.UID}}}, metav1.CreateOptions{})
	s.world.must(err)
	file := filepath.Join(s.world.Dir, s.network+"-"+pod+".token")
	s.world.must(replace(file, r.Status.Token))
	return file
}

// kubeconfigOf writes what a process needs to ask the API server by a token.
func (s *side) kubeconfigOf(token string) string {
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthority: s.at("ca.crt")}
	k.AuthInfos["c"] = &clientcmdapi.AuthInfo{TokenFile: token}
	k.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	k.CurrentContext = "c"
	s.world.must(clientcmd.WriteToFile(*k, token+".kubeconfig"))
	return token + ".kubeconfig"
}

const commonConfig = "identity: {source: ca, dir: ca}\nlog: {level: info, format: json}\n"

// common is of the configuration of all processes of the side.
func (s *side) common() string {
	if c, own := s.world.cards[s.network]; own {
		return fmt.Sprintf("trustDomain: %s\n%s", c.TrustDomain, strings.ReplaceAll(commonConfig, "dir: ca", "dir: ca-"+s.network))
	}
	return commonConfig
}

// startGateways starts n gateways on every network.
func (w *world) startGateways(n int, more string) {
	w.t.Helper()
	for _, s := range w.sides {
		s.balance(n)
		w.write(s.network+"-knows.yaml", s.others(n))
		for i := range n {
			name := fmt.Sprintf("gw-%d", i+1)
			host := s.network + "-" + name
			w.must(w.Host(segment, host, s.gatewayAddress(i)))
			config := s.kubeconfigOf(s.token("gateway", name, s.nodes[0].name))
			s.kubelet(w.t, "isthmus-system", name, s.gatewayAddress(i), corev1.ConditionTrue)
			w.write(host+".yaml", fmt.Sprintf("name: %s\nnetwork: %s\nlisten: \"%s:15008\"\naddress: {service: isthmus-system/isthmus-gateway}\ndiscovery: {kube: {kubeconfig: %q, gateways: isthmus-system/isthmus-gateway-nodes%s}}\nfederation: {keys: key-%[2]s, networks: %[2]s-knows.yaml}\nadmin: {address: %[6]q}\ntimeouts: {drain: %[7]v}\n%[8]s",
				name, s.network, s.gatewayAddress(i), config, strings.ReplaceAll(more, "CACHE", host+".cache"), adminAddress, drainTime, s.common()))
			p := &netspace.Process{Host: host, Args: []string{filepath.Join(w.bin, "gateway"), "--config", host + ".yaml"}, Log: filepath.Join(w.Dir, host+".log"), Names: w.names}
			s.gateways = append(s.gateways, p)
			w.launch(p)
		}
	}
}

// fronts are where other networks dial n gateways.
func (s *side) fronts(n int) (hosts []string) {
	if len(s.balanced) > 0 {
		return s.balanced
	}
	for i := range n {
		hosts = append(hosts, s.gatewayAddress(i))
	}
	return hosts
}

// ingress is what the status of a Service says of a load balancer at hosts.
func ingress(hosts ...string) (list []corev1.LoadBalancerIngress) {
	for _, h := range hosts {
		if _, err := netip.ParseAddr(h); err == nil {
			list = append(list, corev1.LoadBalancerIngress{IP: h})
		} else {
			list = append(list, corev1.LoadBalancerIngress{Hostname: h})
		}
	}
	return list
}

// balance makes the Services before the gateways, and plays the load balancer that other
// networks dial.
func (s *side) balance(n int) {
	t := s.world.t
	t.Helper()
	spec := corev1.ServiceSpec{Selector: map[string]string{"app": "gateway"}, Ports: []corev1.ServicePort{{Name: "hbone", Port: 15008}}}
	nodes := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-gateway-nodes"}, Spec: spec}
	nodes.Spec.ClusterIP, nodes.Spec.PublishNotReadyAddresses = corev1.ClusterIPNone, true
	front := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-gateway"}, Spec: spec}
	front.Spec.Type = corev1.ServiceTypeLoadBalancer
	services := s.CoreV1().Services("isthmus-system")
	_, err := services.Create(t.Context(), nodes, metav1.CreateOptions{})
	s.world.must(err)
	made, err := services.Create(t.Context(), front, metav1.CreateOptions{})
	s.world.must(err)
	made.Status.LoadBalancer.Ingress = ingress(s.fronts(n)...)
	_, err = services.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	s.world.must(err)
}

// launch starts a process; started says how that went.
func (w *world) launch(p *netspace.Process) {
	w.starting = append(w.starting, make(chan error, 1))
	done := w.starting[len(w.starting)-1]
	go func() { done <- w.Start(p, w.Ready(p.Host, adminAddress)) }()
}

// started returns when all processes that were launched are ready.
func (w *world) started() {
	w.t.Helper()
	for _, done := range w.starting {
		w.must(<-done)
	}
	w.starting = nil
}

// others is the file of the other networks' keys, and of where their n gateways are dialed.
func (s *side) others(n int) string {
	if s.world.cards != nil {
		return s.linked()
	}
	var entries []string
	for _, o := range s.world.sides {
		if o == s {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.world.Dir, "key-"+o.network, "network.yaml"))
		s.world.must(err)
		_, list, _ := strings.Cut(string(text), "networks:\n")
		var addresses []string
		for _, h := range o.fronts(n) {
			addresses = append(addresses, fmt.Sprintf("%q", h+":15008"))
		}
		entries = append(entries, fmt.Sprintf("%s    addresses: [%s]\n", list, strings.Join(addresses, ", ")))
	}
	return "networks:\n" + strings.Join(entries, "")
}

// startNodes starts a node proxy on every node; pods that have clients are already there.
func (w *world) startNodes() {
	w.t.Helper()
	for _, s := range w.sides {
		var gateways []string
		for i := range s.gateways {
			gateways = append(gateways, s.gatewayAddress(i)+":15008")
		}
		for _, n := range s.nodes {
			socks := ""
			for _, p := range s.pods {
				if p.node == n && p.client {
					socks += fmt.Sprintf("  - {workload: %s, listen: \"%s:%s\"}\n", p.uid, p.address, socksPort)
				}
			}
			if socks != "" {
				socks = "socks:\n" + socks
			}
			s.token("nodeproxy", "isthmus-nodeproxy-"+n.name, n.name, "isthmus-gateway")
			w.write(n.name+".yaml", fmt.Sprintf("node: %s\nnetwork: %s\ndiscovery: {gateways: [%[7]s], cache: %[1]s.cache}\nfederation: {networks: %[2]s-knows.yaml}\nadmin: {address: %[3]q}\ntimeouts: {drain: %[4]v}\n%[5]s%[6]s%[8]s",
				n.name, s.network, adminAddress, drainTime, s.common(), socks, strings.Join(gateways, ", "), n.more))
			n.proxy = &netspace.Process{Host: n.name, Args: []string{filepath.Join(w.bin, "nodeproxy"), "--config", n.name + ".yaml"}, Log: filepath.Join(w.Dir, n.name+".log"), Names: w.names}
			w.launch(n.proxy)
		}
	}
}

// log is all that the process of a host has written.
func (w *world) log(t *testing.T, host string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(w.Dir, host+".log"))
	w.must(err)
	return string(b)
}
