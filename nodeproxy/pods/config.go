package pods

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// Config is how connections of local pods are captured in their own network namespaces.
type Config struct {
	Scope          string         `yaml:"scope" default:"off" doc:"connections of local pods to capture. off: none, applications connect to listeners. vips: connections to virtual addresses (ranges) and to cluster IPs of services that lead to other networks too. all: connections of a pod to destinations of the mesh; also plain-text connections to its listening ports, while a policy of the pod may deny plain text. All other connections are left to the kernel. release: none, and existing rules are removed from all pods of the node; otherwise they go on refusing connections. Needs root, or the capabilities SYS_ADMIN, NET_ADMIN, NET_RAW and SYS_PTRACE, and nf_tables with nfnetlink_log (Linux 5.12)" env:"ISTHMUS_CAPTURE"`
	Proc           string         `yaml:"proc" default:"/proc" doc:"proc file system of the node, with the processes of its pods: a container has to mount it"`
	Ranges         []netip.Prefix `yaml:"ranges" doc:"virtual addresses of the mesh, assigned by the controller, in no other use in the cluster; left out: 240.240.0.0/16 and 2001:2::/48; []: none, so that only addresses of known services lead to the mesh"`
	OriginalSource string         `yaml:"originalSource" default:"auto" doc:"whether the application of a captured pod sees the peer's address (a pod of its network, or the gateway for other networks) as its client's. true: always, and a pod where that is impossible is not captured; auto: where possible; false: never, it sees the pod's own address. It also sees the pod's own if the peer's address is of another family, is one of the pod's, or has no free port" env:"ENABLE_ORIG_SRC"`
	CNISocket      string         `yaml:"cniSocket" doc:"unix socket on which the CNI plugin isthmus-cni announces pods before they start and waits for their capture; left out, pods are found by their processes only" env:"ISTHMUS_CNI_SOCKET"`
	Namespaces     []Namespace    `yaml:"namespaces" doc:"without a kubelet: workloads with the files of their network namespaces"`
}

// Namespace is where the network namespace of one workload is.
type Namespace struct {
	Workload   string `yaml:"workload" doc:"UID of the local workload; an interface of that namespace has its first address"`
	Path       string `yaml:"path" doc:"file of its network namespace, such as /run/netns/shop"`
	ResolvConf string `yaml:"resolvConf" doc:"file of its resolver configuration, such as /etc/netns/shop/resolv.conf; left out, the node proxy answers no DNS queries there"`
}

// maxSocket leaves room for what a socket is called before it takes its name: the kernel has 107 bytes.
const maxSocket = 90

// Values of capture.scope.
const (
	ScopeOff  = "off"
	ScopeVIPs = "vips"
	ScopeAll  = "all"
	// ScopeRelease removes capture from a node, before its node proxy is uninstalled.
	ScopeRelease = "release"
)

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	return Config{Scope: ScopeOff, OriginalSource: SourceAuto, Proc: "/proc", Ranges: []netip.Prefix{netip.MustParsePrefix("240.240.0.0/16"), netip.MustParsePrefix("2001:2::/48")}}
}

// On reports whether pods are captured.
func (c Config) On() bool { return c.Scope == ScopeVIPs || c.Scope == ScopeAll }

// All reports whether all TCP connections of the mesh are captured, not only those to virtual addresses.
func (c Config) All() bool { return c.Scope == ScopeAll }

// Check names each key below capture that cannot be, its value and the remedy.
func (c Config) Check(v *strictyaml.Check) {
	switch c.Scope {
	case ScopeOff, "":
		if len(c.Namespaces) > 0 {
			v.Fail("capture.namespaces", "%q: nothing is captured: set capture.scope to %s or %s, or leave it out", c.Namespaces[0].Workload, ScopeVIPs, ScopeAll)
		}
		if c.CNISocket != "" {
			v.Fail("capture.cniSocket", "%q: nothing is captured: set capture.scope to %s or %s, or leave it out", c.CNISocket, ScopeVIPs, ScopeAll)
		}
		return
	case ScopeVIPs, ScopeAll, ScopeRelease:
	default:
		v.Fail("capture.scope", "%q is unknown: use %s, %s, %s or %s", c.Scope, ScopeOff, ScopeVIPs, ScopeAll, ScopeRelease)
	}
	switch c.OriginalSource {
	case SourceAuto, SourceTrue, SourceFalse, "":
	default:
		v.Fail("capture.originalSource", "%q is unknown: use %s, %s or %s", c.OriginalSource, SourceAuto, SourceTrue, SourceFalse)
	}
	c.checkProc(v)
	if c.CNISocket != "" && (!filepath.IsAbs(c.CNISocket) || len(c.CNISocket) > maxSocket) {
		v.Fail("capture.cniSocket", "%q: want an absolute path of at most %d bytes, such as /run/isthmus/cni.sock", c.CNISocket, maxSocket)
	} else if c.CNISocket != "" && c.On() {
		v.Field("capture.cniSocket", cnisocket.Free(c.CNISocket))
	}
	for i, r := range c.Ranges {
		field := fmt.Sprintf("capture.ranges[%d]", i)
		switch {
		case !r.IsValid():
			v.Fail(field, "must be a range such as 240.240.0.0/16")
		case r != r.Masked():
			v.Fail(field, "%s: has bits behind its length: write %s", r, r.Masked())
		case r.Addr().Is4() && r.Bits() < 8 || r.Addr().Is6() && r.Bits() < 16:
			v.Fail(field, "%s: holds more than any mesh needs, and pods would reach nothing of it: use a longer prefix, such as 240.240.0.0/16", r)
		case r.Overlaps(netip.MustParsePrefix("127.0.0.0/8")), r.Overlaps(netip.MustParsePrefix("::1/128")), r.Overlaps(netip.MustParsePrefix("169.254.0.0/16")), r.Overlaps(netip.MustParsePrefix("fe80::/10")), r.Addr().IsMulticast():
			v.Fail(field, "%s: holds loopback, link-local or multicast addresses, which are none of a service: use another range", r)
		}
	}
	for i, n := range c.Namespaces {
		field := fmt.Sprintf("capture.namespaces[%d]", i)
		if n.Workload == "" || !filepath.IsAbs(n.Path) {
			v.Fail(field, "workload %q, path %q: needs both, and path an absolute one, such as /run/netns/shop", n.Workload, n.Path)
		}
		if slices.ContainsFunc(c.Namespaces[:i], func(o Namespace) bool { return o.Workload == n.Workload || o.Path == n.Path }) {
			v.Fail(field, "%q at %s: one above has the workload or the path already: remove one of the two", n.Workload, n.Path)
		}
	}
}

// checkProc checks for a proc file system: without it no pod is found, and no other error would show that.
func (c Config) checkProc(v *strictyaml.Check) {
	const remedy = "use /proc, or where the node's is mounted"
	if !filepath.IsAbs(c.Proc) {
		v.Fail("capture.proc", "%q is no absolute path: %s", c.Proc, remedy)
		return
	}
	info, err := os.Stat(c.Proc)
	switch {
	case err != nil:
		v.Fail("capture.proc", "%w: no pod would be found without it: %s", err, remedy)
	case !info.IsDir():
		v.Fail("capture.proc", "%q is no directory: %s", c.Proc, remedy)
	default:
		if _, err := os.Stat(filepath.Join(c.Proc, "self/cgroup")); err != nil { // each has it, whoever reads it
			v.Fail("capture.proc", "%q is no proc file system, as it has no self/cgroup: no pod would be found in it: %s", c.Proc, remedy)
		}
	}
}

// holds reports whether a is one of the virtual addresses of ranges.
func (c Config) holds(a netip.Addr) bool {
	return slices.ContainsFunc(c.Ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// rules returns the capture rules of this node's pods for the current discovery: ranges, and
// the addresses outside them of services that lead to other networks too.
func (c Config) rules(snap *mesh.Snapshot, owner string) capture.Rules {
	r := capture.Rules{Owner: owner, Ranges: c.Ranges, Everything: c.All()}
	add := func(list []netip.Addr) {
		for _, a := range list {
			if !c.holds(a) {
				r.Addresses = append(r.Addresses, a)
			}
		}
	}
	for _, s := range snap.Services() {
		if s.Exported() && s.Takeover {
			add(s.VIPs)
		}
		if s.Import != nil {
			add(s.Import.VIPs)
		}
	}
	slices.SortFunc(r.Addresses, netip.Addr.Compare)
	r.Addresses = slices.Compact(r.Addresses)
	return r
}

// Overlapping returns an error for a pod or gateway of this network with an address within ranges:
// connections to it would be captured.
func (c Config) Overlapping(snap *mesh.Snapshot, network string) error {
	for _, w := range snap.Workloads() {
		for _, a := range w.Addresses {
			if w.Network == network && c.holds(a) {
				return fmt.Errorf("capture.ranges: hold %s, which is the address of workload %s: give the mesh virtual addresses that no pod has", a, w.UID)
			}
		}
	}
	for _, g := range snap.Gateways(network) {
		if c.holds(g.Address.Addr()) {
			return fmt.Errorf("capture.ranges: hold %s, which is the address of gateway %s: give the mesh virtual addresses that nobody has", g.Address, g.Name)
		}
	}
	return nil
}

// Absent names the files of network namespaces and resolvers that cannot be read now. They may be made
// later, and keep no process from starting.
func (c Config) Absent() error {
	var v strictyaml.Check
	for i, n := range c.Namespaces {
		field := fmt.Sprintf("capture.namespaces[%d]", i)
		if !c.On() {
			break
		}
		if _, err := os.Stat(n.Path); err != nil {
			v.Fail(field+".path", "%w: correct the path, or create the namespace; until then its pod is not captured", err)
		}
		if n.ResolvConf == "" {
			continue
		}
		if _, err := os.ReadFile(n.ResolvConf); err != nil {
			v.Fail(field+".resolvConf", "%w: name the file by which the pod resolves, or leave it out; until then names are not answered in the pod", err)
		}
	}
	return v.Err()
}
