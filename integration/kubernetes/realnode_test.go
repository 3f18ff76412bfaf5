package kubernetes

import (
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// containers is the directory of containerd, runc and CNI plugins that make test-kubelet
// builds.
const containers = "CONTAINERS"

const (
	podNetwork     = "10.244.0.0/16" // on every network: pods of one cannot reach those of another
	serviceNetwork = "10.96.0.0/16"
	apiService     = "10.96.0.1"
	dnsService     = "10.96.0.10"
)

// realNode is a node with everything that a cluster has: etcd, API server, controller manager,
// scheduler, kube-proxy, kubelet, containerd, runc, CNI plugins and, in a pod, CoreDNS. One that joins
// another's cluster has kube-proxy and what runs pods. All of it lives in namespaces of the node's own, and
// ends with its first process.
type realNode struct {
	*cluster
	name, address string
	head          *realNode // whose cluster it has joined; nil: its own
	pods          string    // the network of its pods
	layout        string    // the CNI plugin that joins pods to the node: ptp or bridge
	dir           string    // what is the node's on the disk
	began         time.Time
	first         *exec.Cmd
	ended         chan struct{} // closed when first has
	tools         string        // directory of containerd and the others
}

// needContainers returns the directory of the container runtime. Whoever has asked for tests
// with kubelets by its variable is not spared them.
func needContainers(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(containers)
	if dir == "" {
		notRun(t, containers+" names no directory with containerd, runc and CNI plugins: run `make test-kubelet`")
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "bridge", "ptp", "host-local", "loopback"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatalf("%v: run `make test-kubelet`, which builds it", err)
		}
	}
	for _, name := range []string{"nft", "ip", "busybox", "curl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: apt-get install nftables iproute2 busybox-static curl", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Fatal("kubelets need root: run make test-kubelet as root")
	}
	return dir
}

// startRealNode starts a node with a cluster of its own in a host of a space. It is gone with the test, or when
// this process dies.
func startRealNode(t *testing.T, space *netspace.Space, program, host, address, layout string) *realNode {
	t.Helper()
	n := &realNode{name: host, address: address, layout: layout, pods: "10.244.0.0/24", tools: needContainers(t)}
	n.cluster = &cluster{dir: t.TempDir(), place: place{space: space, host: host, address: address, names: []net.IP{net.ParseIP(apiService)}}}
	n.certificates(t)
	n.start(t, program)
	var err error
	if n.config, err = clientcmd.BuildConfigFromFlags("", n.kubeconfig); err != nil {
		t.Fatal(err)
	}
	n.config.QPS, n.config.Burst = 1000, 1000
	n.config.Dial = n.dial
	if n.Interface, err = kubernetes.NewForConfig(n.config); err != nil {
		t.Fatal(err)
	}
	return n
}

// join starts a second node of n's cluster in another host of its space, with routes between the pods of both.
func (n *realNode) join(t *testing.T, program, host, address string) *realNode {
	t.Helper()
	at := n.place
	at.host, at.address = host, address
	c := *n.cluster
	c.place = at
	second := &realNode{cluster: &c, head: n, name: host, address: address, layout: n.layout, pods: "10.244.1.0/24", tools: n.tools}
	for from, to := range map[*realNode]*realNode{n: second, second: n} {
		if err := from.place.space.IP(from.name, "route add "+to.pods+" via "+to.address); err != nil {
			t.Fatal(err)
		}
	}
	second.start(t, program)
	return second
}

// start starts the node's first process, which starts the others.
func (n *realNode) start(t *testing.T, program string) {
	t.Helper()
	n.leavesNothing(t)
	n.began = time.Now()
	n.describe(t, program)
	n.first = exec.Command(filepath.Join(n.dir, "bin", "node"), filepath.Join(n.dir, "spec.json"))
	log, err := os.Create(filepath.Join(n.dir, "first.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n.first.Env = append(os.Environ(), "PATH="+n.dir+"/bin:"+n.tools+":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
	n.first.Stdout, n.first.Stderr = log, log
	n.first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	if err := n.place.launch(n.first); err != nil {
		t.Fatal(err)
	}
	n.ended = make(chan struct{})
	go func() { defer close(n.ended); n.first.Wait() }()
	t.Cleanup(func() {
		n.end()
		if t.Failed() {
			n.showLogs(t)
		}
	})
}

// end kills all processes of the node.
func (n *realNode) end() {
	n.first.Process.Kill()
	<-n.ended
}

// awaitReady waits until the node is Ready.
func (n *realNode) awaitReady(t *testing.T) {
	t.Helper()
	eventually(t, 4*time.Minute, "node "+n.name+" is Ready", n.ready(t))
	t.Logf("node %s is Ready after %.1f s", n.name, time.Since(n.began).Seconds())
}

func (n *realNode) ready(t *testing.T) func() bool {
	return func() bool {
		select {
		case <-n.ended:
			t.Fatalf("the first process of node %s has ended: %v: %s", n.name, n.first.ProcessState, netspace.Tail(filepath.Join(n.dir, "first.log")))
		default:
		}
		time.Sleep(50 * time.Millisecond)
		node, err := n.CoreV1().Nodes().Get(t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return true
			}
		}
		return false
	}
}

// describe writes the node's configuration, and what its first process is to do.
func (n *realNode) describe(t *testing.T, program string) {
	t.Helper()
	for _, d := range []string{"bin", "lib", "log", "cni", "etcd", "images"} {
		if err := os.MkdirAll(filepath.Join(n.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{"node": program}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		links[name] = needComponents(t)
	}
	for _, name := range []string{"bridge", "ptp", "host-local", "loopback"} {
		links[name] = filepath.Join(n.tools, name)
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(n.dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	n.issue(t, "kubelet-"+n.name, pkix.Name{CommonName: "system:node:" + n.name, Organization: []string{"system:nodes"}})
	server := "https://" + n.address + ":6443"
	if n.head == nil {
		n.kubeconfig = n.user(t, server, "admin", "system:masters")
	} else {
		server = "https://" + n.head.address + ":6443"
	}
	users := map[string]string{}
	for _, u := range []string{"system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"} {
		users[u] = n.user(t, server, u, "system:masters")
	}
	kubelet := n.user(t, server, "system:node:"+n.name, "system:nodes")
	replacer := strings.NewReplacer("DIR", n.dir, "PKI", n.cluster.dir, "TOOLS", n.tools, "NAME", n.name, "ADDRESS", n.address, "ALLPODS", podNetwork, "PODS", n.pods, "SERVICES", serviceNetwork, "CGROUP", n.cgroup(), "RESOLVER", dnsService, "INTERNET", internetNames, "LAYOUT", layouts[n.layout],
		"PROXYUSER", users["system:kube-proxy"])
	for file, text := range nodeFiles {
		if err := os.WriteFile(filepath.Join(n.dir, file), []byte(replacer.Replace(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var setup [][]string
	for _, line := range nodeSetup {
		setup = append(setup, strings.Fields(replacer.Replace(line)))
	}
	var programs []map[string]any
	run := func(name string, args ...string) {
		binary := filepath.Join(n.dir, "bin", name)
		if name == "containerd" {
			binary = filepath.Join(n.tools, name)
		}
		programs = append(programs, map[string]any{"Name": name, "Args": append([]string{binary}, args...)})
	}
	run("containerd", "-c", n.dir+"/containerd.toml")
	if n.head == nil {
		n.controlPlane(run, users)
	}
	run("kubelet", "--config="+n.dir+"/kubelet.yaml", "--kubeconfig="+kubelet, "--node-ip="+n.address, "--hostname-override="+n.name, "--root-dir=/var/lib/kubelet", "--v=2")
	run("kube-proxy", "--config="+n.dir+"/proxy.yaml")
	text, err := json.Marshal(map[string]any{"Name": n.name, "Dir": n.dir, "Setup": setup, "Programs": programs})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "spec.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// controlPlane runs what a cluster has once.
func (n *realNode) controlPlane(run func(name string, args ...string), users map[string]string) {
	run("etcd", "--data-dir", n.dir+"/etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380", "--log-level", "warn", "--unsafe-no-fsync")
	run("kube-apiserver", "--bind-address="+n.address, "--secure-port=6443", "--advertise-address="+n.address, "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range="+serviceNetwork,
		"--tls-cert-file="+n.at("apiserver.crt"), "--tls-private-key-file="+n.at("apiserver.key"), "--client-ca-file="+n.at("ca.crt"),
		"--kubelet-client-certificate="+n.at("user-61646d696e.crt"), "--kubelet-client-key="+n.at("user-61646d696e.key"), "--kubelet-certificate-authority="+n.at("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+n.at("sa.key"), "--service-account-signing-key-file="+n.at("sa.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	as := func(user string) []string {
		return []string{"--kubeconfig=" + users[user], "--authentication-kubeconfig=" + users[user], "--authorization-kubeconfig=" + users[user], "--bind-address=127.0.0.1", "--leader-elect=false", "--cert-dir=/run/" + strings.TrimPrefix(user, "system:")}
	}
	run("kube-controller-manager", append(as("system:kube-controller-manager"), "--service-account-private-key-file="+n.at("sa.key"), "--root-ca-file="+n.at("ca.crt"))...)
	run("kube-scheduler", as("system:kube-scheduler")...)
}

// nodeSetup is done before a node's programs start. Pods reach what is outside as the node. What pods
// send to virtual addresses is counted: nothing of it should leave them.
var nodeSetup = []string{
	"sysctl -qw net.ipv4.ip_forward=1",
	"nft -f DIR/masquerade.nft",
}

// layouts are how a CNI plugin joins pods to their node: by a line for each, or all by a bridge,
// over which frames of one go to another without the node's routes.
var layouts = map[string]string{"ptp": `"type": "ptp"`, "bridge": `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`}

// nodeFiles are the configurations of a node's programs.
var nodeFiles = map[string]string{
	"masquerade.nft": `table ip node {
  chain leave {
    type nat hook postrouting priority 90;
    ip saddr PODS ip daddr != ALLPODS oifname "eth0" masquerade
  }
  chain escaped {
    type filter hook prerouting priority -310;
    ip daddr 240.240.0.0/16 counter
  }
}
`,
	"containerd.toml": `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "TOOLS/runc"
  SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["DIR/bin"]
  conf_dir = "DIR/cni"
`,
	"cni/10-pods.conflist": `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {LAYOUT, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/run/ipam", "ranges": [[{"subnet": "PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`,
	"resolv.conf": "nameserver INTERNET\n",
	"kubelet.yaml": `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: ADDRESS
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: PKI/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: PKI/kubelet-NAME.crt
tlsPrivateKeyFile: PKI/kubelet-NAME.key
cgroupDriver: cgroupfs
cgroupRoot: /CGROUP
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDomain: cluster.local
clusterDNS: ["RESOLVER"]
resolvConf: DIR/resolv.conf
imageGCHighThresholdPercent: 100
syncFrequency: 5s # by default a minute, after which pods see a change of a ConfigMap
evictionHard: {memory.available: 100Mi}
`,
	"proxy.yaml": `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: PROXYUSER}
hostnameOverride: NAME
bindAddress: ADDRESS
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clusterCIDR: ALLPODS
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`,
}

// load puts image archives into the node's containerd, as docs/operations.md says.
func (n *realNode) load(t *testing.T, archives []string) {
	t.Helper()
	socket := fmt.Sprintf("/proc/%d/root/run/containerd/containerd.sock", n.first.Process.Pid)
	eventually(t, time.Minute, "containerd listens", func() bool { _, err := os.Stat(socket); return err == nil })
	for _, a := range archives {
		out, err := exec.Command(filepath.Join(n.tools, "ctr"), "--address", socket, "--namespace", "k8s.io", "images", "import", a).CombinedOutput()
		if err != nil {
			t.Fatalf("import %s: %v\n%s", a, err, out)
		}
	}
}

// showLogs keeps all logs of the node below build/kubernetes/logs, and prints what the processes of
// the mesh there said last.
func (n *realNode) showLogs(t *testing.T) {
	keep := filepath.Join(filepath.Dir(n.tools), "logs", t.Name(), n.name)
	if err := errors.Join(os.RemoveAll(keep), os.CopyFS(keep, os.DirFS(filepath.Join(n.dir, "log")))); err != nil {
		t.Errorf("keep the logs of %s: %v", n.name, err)
	}
	first, _ := os.ReadFile(filepath.Join(n.dir, "first.log"))
	t.Logf("logs of %s are in %s %s", n.name, keep, first)
	pods, _ := filepath.Glob(filepath.Join(n.dir, "log", "pods", system+"_*", "*", "*.log"))
	for _, l := range pods {
		lines := strings.Split(strings.TrimSpace(netspace.Tail(l)), "\n")
		for _, line := range lines[max(0, len(lines)-3):] {
			t.Logf("%s %s: %.400s", n.name, strings.TrimPrefix(filepath.Dir(filepath.Dir(l)), filepath.Join(n.dir, "log", "pods", system)+"_"), line)
		}
	}
}
