package depcheck

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// modules are the modules of others that each room imports outside of tests,
// with what it takes from them. A room that is not here imports none.
var modules = map[string]why{
	"mesh":                    {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"policy":                  {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"route":                   {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"discovery":               {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"control/health":          {"google.golang.org/protobuf": "the codec of health and reports"},
	"control/health/healthpb": {"google.golang.org/protobuf": "what the generated code runs on"},
	"control/wds":             {"github.com/spiffe/go-spiffe/v2": "the type of an identity", "google.golang.org/protobuf": "the codec of resources"},
	"control/wds/wdspb":       {"google.golang.org/protobuf": "what the generated code runs on"},

	"discovery/excerpt": {"google.golang.org/protobuf": "the codec of what is told"},
	"discovery/ztunnel": {"github.com/spiffe/go-spiffe/v2": "the type of an identity", "go.yaml.in/yaml/v3": "writes the configuration"},
	"discovery/kube": {
		"github.com/go-logr/logr":             "silences client-go, which writes to stderr",
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"k8s.io/api":                          "the objects of Kubernetes",
		"k8s.io/apimachinery":                 "what all of them have, and the errors of its API",
		"k8s.io/client-go":                    "lists, watches and their retries",
		"k8s.io/klog/v2":                      "hands client-go a log that says nothing",
	},

	"discovery/kube/pods": {
		"k8s.io/api":       "a Pod",
		"k8s.io/client-go": "what an informer calls",
	},
	"discovery/kube/boundtoken": {
		"github.com/go-jose/go-jose/v4":       "reads the keys of an API server and verifies its tokens by them: a library that others look after, and the one of Kubernetes",
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"github.com/spiffe/go-spiffe/v2":      "the type of an identity",
		"k8s.io/api":                          "a TokenReview",
		"k8s.io/apimachinery":                 "the errors of its API",
		"k8s.io/client-go":                    "asks the API server",
	}, "discovery/file": {"github.com/prometheus/client_golang": "its metrics", "github.com/rs/zerolog": "its log"},

	"federation":                    {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"federation/antientropy":        {"google.golang.org/protobuf": "the codec of records"},
	"federation/federationpb":       {"google.golang.org/protobuf": "what the generated code runs on"},
	"federation/ledger":             {"github.com/spiffe/go-spiffe/v2": "the type of an identity", "google.golang.org/protobuf": "the codec of records"},
	"federation/links":              {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"federation/networkkey/keyfile": {"github.com/spiffe/go-spiffe/v2": "names of trust domains and accounts", "go.yaml.in/yaml/v3": "replaces keys in a file, and leaves what else it says"},
	"federation/linkcard":           {"github.com/spiffe/go-spiffe/v2": "names of trust domains", "go.yaml.in/yaml/v3": "writes a card"},
	"federation/networkkey":         {"google.golang.org/protobuf": "the codec of certificates"},
	"federation/record":             {"github.com/spiffe/go-spiffe/v2": "the type of an identity", "google.golang.org/protobuf": "the codec of records"},
	"federation/peer":               {"github.com/prometheus/client_golang": "its metrics"},
	"federation/healthstream":       {"github.com/rs/zerolog": "its log", "github.com/spiffe/go-spiffe/v2": "the type of an identity", "google.golang.org/protobuf": "the codec of messages"},
	"federation/gossip": {
		"github.com/hashicorp/memberlist": "members, probes and packets of gateways",
		"github.com/rs/zerolog":           "its log",
		"github.com/spiffe/go-spiffe/v2":  "the type of an identity",
		"google.golang.org/protobuf":      "the codec of introductions",
	},

	"hbone": {
		"github.com/spiffe/go-spiffe/v2": "the identity of the other end",
		"golang.org/x/net":               "HPACK, the types of frames and error codes",
		"golang.org/x/sys":               "what the kernel knows of a TCP connection",
	},
	"hbone/wire": {"golang.org/x/net": "HPACK, the types of frames and error codes"},
	"hbone/quic": {
		"github.com/prometheus/client_golang": "its metric",
		"github.com/quic-go/qpack":            "field sections of HTTP/3",
		"github.com/quic-go/quic-go":          "QUIC",
		"golang.org/x/net":                    "error codes of HTTP/2",
		"golang.org/x/sys":                    "ICMP errors of a handshake",
	},
	"hbone/pool": {"github.com/prometheus/client_golang": "its metrics", "golang.org/x/net": "error codes of GOAWAY"},

	"identity": {
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"github.com/spiffe/go-spiffe/v2":      "SVIDs, bundles and their verification",
		"golang.org/x/sys":                    "locks of files",
	},
	"identity/istioclient": {
		"google.golang.org/grpc":     "the transport of Istio's certificate protocol",
		"google.golang.org/protobuf": "the metadata of a request",
	},
	"identity/istioca": {
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"github.com/spiffe/go-spiffe/v2":      "the type of an identity",
		"google.golang.org/grpc":              "the transport of Istio's certificate protocol",
	},
	"identity/istioca/istiocapb": {"google.golang.org/protobuf": "what the generated code runs on"},

	"control/ads": {
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"google.golang.org/grpc":              "the transport of discovery",
		"google.golang.org/protobuf":          "the codec of resources",
	},
	"control/ads/adspb": {"google.golang.org/protobuf": "the runtime of the generated code"},

	"gateway": {
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"github.com/spiffe/go-spiffe/v2":      "the type of an identity",
		"golang.org/x/net":                    "error codes of streams",
		"golang.org/x/sync":                   "groups of goroutines",
		"golang.org/x/sys":                    "options of sockets",
	},
	"nodeproxy": {
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"github.com/spiffe/go-spiffe/v2":      "the type of an identity",
		"golang.org/x/net":                    "error codes of streams",
		"golang.org/x/sync":                   "groups of goroutines",
		"golang.org/x/sys":                    "the kernel's state of a TCP connection",
	},
	"nodeproxy/capture": {
		"github.com/cilium/ebpf":      "eBPF programs",
		"github.com/google/nftables":  "sets rules",
		"github.com/mdlayher/netlink": "makes the table that goes with its socket, which nftables has no word for, and rules of routing",
		"golang.org/x/sys":            "options of sockets, and constants of nf_tables",
	},
	"nodeproxy/cnisocket": {"golang.org/x/sys": "descriptors and credentials of unix sockets"},
	"nodeproxy/cniinstall": {
		"github.com/rs/zerolog": "its log",
		"golang.org/x/sys":      "exchanges of files, leases and locks",
	},
	"nodeproxy/cniplugin": {"github.com/containernetworking/cni": "what runtimes and plugins say to each other, in all its versions"},
	"nodeproxy/names": {
		"github.com/miekg/dns":                "the messages of DNS",
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
	},
	"nodeproxy/sockdiag": {"golang.org/x/sys": "netlink sockets"},
	"nodeproxy/podns":    {"golang.org/x/sys": "namespaces"},
	"nodeproxy/pods":     {"github.com/prometheus/client_golang": "its metrics", "github.com/rs/zerolog": "its log"},
	"nodeproxy/warm":     {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"nodeproxy/warmset":  {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"nodeproxy/picker":   {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"drill/demoapp":      {"golang.org/x/sys": "accepts, and filters of sockets"},
	"drill/lab":          {"go.yaml.in/yaml/v3": "writes configurations", "golang.org/x/sync": "groups of goroutines", "golang.org/x/sys": "network namespaces"},

	"controller": {
		"github.com/prometheus/client_golang": "its metrics",
		"github.com/rs/zerolog":               "its log",
		"github.com/spiffe/go-spiffe/v2":      "the type of an identity",
		"golang.org/x/sync":                   "groups of goroutines",
	},
	"discovery/kube/imported": {"github.com/rs/zerolog": "its log"},
	"discovery/kube/owned": {
		"github.com/go-logr/logr": "silences client-go, which writes to stderr",
		"github.com/rs/zerolog":   "its log",
		"k8s.io/api":              "the objects of Kubernetes",
		"k8s.io/apimachinery":     "what all of them have, and the errors of its API",
		"k8s.io/client-go":        "lists, watches, writes, and the election of a leader",
		"k8s.io/klog/v2":          "hands client-go a log that says nothing",
	},
	"cmd/controller": {"github.com/rs/zerolog": "its log"},
	"cmd/gateway":    {"github.com/rs/zerolog": "its log"},
	"cmd/nodeproxy":  {"github.com/rs/zerolog": "its log"},
	"cmd/isthmus": {
		"github.com/rs/zerolog":          "its log",
		"github.com/spf13/cobra":         "commands and flags",
		"github.com/spf13/pflag":         "names of flags and what is wrong with one, which cobra takes from it",
		"github.com/spiffe/go-spiffe/v2": "the type of an identity",
		"go.yaml.in/yaml/v3":             "reads what helm renders, and the addresses of gateways",
		"golang.org/x/sync":              "node proxies that are asked at once",
	},

	"integration/kubernetes/node": {"golang.org/x/sys": "mounts of a node that only tests have"},

	"integration/stock":     {"google.golang.org/protobuf": "the node agent's protocol, field by field"},
	"integration/benchpath": {"golang.org/x/sys": "sleeps precisely, names the kernel"},
	"integration/fleet": {
		"github.com/prometheus/client_model": "reads metrics",
		"github.com/prometheus/common":       "reads metrics",
		"go.yaml.in/yaml/v3":                 "writes configurations",
		"golang.org/x/sys":                   "clocks of processes",
	},

	"internal/accept":     {"github.com/rs/zerolog": "its log"},
	"internal/admin":      {"github.com/prometheus/client_golang": "the registry that it answers from"},
	"internal/admission":  {"github.com/prometheus/client_golang": "its metrics", "github.com/rs/zerolog": "its log"},
	"internal/lines":      {"github.com/rs/zerolog": "its log"},
	"internal/link":       {"github.com/spiffe/go-spiffe/v2": "the type of an identity"},
	"internal/logging":    {"github.com/rs/zerolog": "what it builds", "golang.org/x/sys": "whether a file is a terminal"},
	"internal/netspace":   {"golang.org/x/sys": "namespaces"},
	"internal/memory":     {"github.com/prometheus/client_golang": "its metrics"},
	"internal/tcp":        {"golang.org/x/sys": "options of sockets"},
	"internal/overload":   {"github.com/prometheus/client_golang": "its metrics"},
	"internal/pathcheck":  {"golang.org/x/net": "error codes of streams"},
	"internal/pending":    {"golang.org/x/sys": "unread bytes of a TCP connection"},
	"internal/process":    {"github.com/rs/zerolog": "its log", "golang.org/x/sys": "the timer slack"},
	"internal/resolve":    {"github.com/miekg/dns": "the messages of DNS: net.Resolver does not tell how long an answer holds"},
	"internal/strictyaml": {"go.yaml.in/yaml/v3": "reads YAML with lines"},
	"internal/wan":        {"golang.org/x/sys": "sleeps precisely"},
}

func TestEveryRoomImportsOnlyTheModulesThatItIsAllowed(t *testing.T) {
	required := requirements(t)
	used := map[string]map[string]bool{}
	for _, s := range sources(t) {
		for path, pos := range s.imports {
			if _, ours := own(path); ours || s.test || matches(parts, s.pkg) || !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") {
				continue
			}
			m := moduleOf(required, path)
			if used[s.pkg] == nil {
				used[s.pkg] = map[string]bool{}
			}
			used[s.pkg][m] = true
			if modules[s.pkg][m] == "" {
				t.Errorf("%s: room %s imports %s: add module %q to its line in internal/depcheck/modules_test.go with a reason, or leave it to a room that has it", s.at(pos), s.pkg, path, m)
			}
		}
	}
	for _, room := range sorted(modules) {
		for _, m := range sorted(modules[room]) {
			if !used[room][m] {
				t.Errorf("room %s imports nothing of module %s any more: remove it from internal/depcheck/modules_test.go", room, m)
			}
		}
	}
}

// requirements returns the modules that go.mod names.
func requirements(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(strings.TrimPrefix(line, "require "))
		if len(f) >= 2 && strings.HasPrefix(f[1], "v") {
			list = append(list, f[0])
		}
	}
	return list
}

// moduleOf returns the one of required that holds the package path, the longest
// if several could, or path itself.
func moduleOf(required []string, path string) string {
	found := ""
	for _, m := range required {
		if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(found) {
			found = m
		}
	}
	if found == "" {
		return path
	}
	return found
}
