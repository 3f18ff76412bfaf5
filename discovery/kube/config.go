package kube

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/policy"
)

// Config is the section of a process's YAML with the API server to follow. The zero Config
// follows none.
type Config struct {
	InCluster       bool   `yaml:"inCluster" default:"false" doc:"true: follow the API server of the cluster that this process runs in, as the pod's service account. Needs list and watch for pods, services, nodes, namespaces, endpointslices.discovery.k8s.io, serviceexports.multicluster.x-k8s.io, and authorizationpolicies and peerauthentications.security.istio.io" env:"ISTHMUS_KUBE_IN_CLUSTER"`
	Kubeconfig      string `yaml:"kubeconfig" doc:"instead of inCluster: path of a kubeconfig file; its current context is used" env:"ISTHMUS_KUBECONFIG"`
	SystemNamespace string `yaml:"systemNamespace" default:"istio-system" doc:"namespace with the label topology.istio.io/network, the cluster's network: a value other than network is a problem" env:"ISTHMUS_SYSTEM_NAMESPACE"`
	RootNamespace   string `yaml:"rootNamespace" default:"istio-system" doc:"namespace of AuthorizationPolicies and PeerAuthentications that apply to the workloads of every namespace, as rootNamespace of Istio's mesh configuration; overrides rootNamespace of a discovery file" env:"ISTHMUS_ROOT_NAMESPACE"`
	Cache           string `yaml:"cache" doc:"file with the last known state of the cluster, written at most every 10 s, for starts without the API server. Place it where it outlives the process, such as in an emptyDir. Left out, a process that starts without the API server is not ready until it answers" env:"ISTHMUS_KUBE_CACHE"`
	NodeAudience    string `yaml:"nodeAudience" default:"isthmus-gateway" doc:"audience of the bound service-account tokens that node proxies prove their nodes with, if their certificates do not name the node. Needs create for tokenreviews.authentication.k8s.io and, for times without the API server, get for nonResourceURLs /.well-known/openid-configuration and /openid/v1/jwks" env:"ISTHMUS_NODE_AUDIENCE"`
	KeyCache        string `yaml:"keyCache" doc:"file with the API server's public keys for tokens, so that a gateway that starts without the API server can verify them; its directory must be writable. Keys that the API server has not published for a day are not used. Left out, keys are kept in memory only" env:"ISTHMUS_KUBE_KEY_CACHE"`
	Gateways        string `yaml:"gateways" doc:"namespace/name of the Service that selects the gateway pods of this network, such as isthmus-system/isthmus-gateway-nodes. A gateway has the name of its pod. The Service must publish addresses that are not ready. Required without discovery.file" env:"ISTHMUS_KUBE_GATEWAYS"`
}

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	return Config{SystemNamespace: "istio-system", RootNamespace: policy.DefaultRootNamespace, NodeAudience: "isthmus-gateway"}
}

// Enabled reports whether there is a cluster to follow.
func (c Config) Enabled() bool { return c.InCluster || c.Kubeconfig != "" }

// Validate names each field that cannot be, its value and what to do, in the order of the
// fields. It reads the kubeconfig, and does not connect to the API server.
func (c Config) Validate() error {
	var v strictyaml.Check
	if !c.Enabled() {
		return nil
	}
	if c.InCluster && c.Kubeconfig != "" {
		v.Fail("discovery.kube.inCluster", "true: kubeconfig %q names an API server too: remove one of the two", c.Kubeconfig)
	} else if _, err := c.rest(); err != nil {
		v.Join(err)
	}
	v.Required("discovery.kube.nodeAudience", c.NodeAudience, "write the audience of the node proxies' tokens, such as isthmus-gateway")
	if c.KeyCache != "" {
		if info, err := os.Stat(filepath.Dir(c.KeyCache)); err != nil || !info.IsDir() {
			v.Fail("discovery.kube.keyCache", "%q: its directory is not there: make it, or leave the key out", c.KeyCache)
		}
	}
	if discovery.NetworkName(c.SystemNamespace) != nil { // which is a label as well
		v.Fail("discovery.kube.systemNamespace", "%q is not the name of a namespace: write such as istio-system", c.SystemNamespace)
	}
	if discovery.NetworkName(c.RootNamespace) != nil {
		v.Fail("discovery.kube.rootNamespace", "%q is not the name of a namespace: write such as istio-system", c.RootNamespace)
	}
	if c.Cache != "" {
		if i, err := os.Stat(filepath.Dir(c.Cache)); err != nil || !i.IsDir() {
			v.Fail("discovery.kube.cache", "%q: there is no directory %s: make it, or mount a volume there", c.Cache, filepath.Dir(c.Cache))
		}
	}
	if c.Gateways != "" {
		v.Field("discovery.kube.gateways", IsObject(c.Gateways))
	}
	return v.Err()
}

// rest returns how to reach the API server.
func (c Config) rest() (*rest.Config, error) {
	var v strictyaml.Check
	if c.InCluster {
		r, err := rest.InClusterConfig()
		if err != nil {
			v.Fail("discovery.kube.inCluster", "true: this process has no service account of a pod: %w: run it as a pod that mounts its token, or write kubeconfig", err)
		}
		return r, v.Err()
	}
	if _, err := os.Stat(c.Kubeconfig); err != nil {
		v.Fail("discovery.kube.kubeconfig", "%w: give a path from the root, or from the directory that the process is started in", err)
		return nil, v.Err()
	}
	r, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		v.Fail("discovery.kube.kubeconfig", "%q: %w: write one that `kubectl --kubeconfig` takes", c.Kubeconfig, err)
	}
	return r, v.Err()
}

// Rest returns how to reach the API server, with the user agent of this process.
func (c Config) Rest() (*rest.Config, error) {
	r, err := c.rest()
	if err != nil {
		return nil, err
	}
	r.UserAgent = "isthmus"
	r.WarningHandlerWithContext = rest.NoWarnings{}
	return r, nil
}

// clients are those of the API server.
type clients struct {
	client kubernetes.Interface
	meta   metadata.Interface
	whole  dynamic.Interface // of kinds that Kubernetes itself does not have, whole
}

// clients returns those of the API server, and its address.
func (c Config) clients() (clients, string, error) {
	r, err := c.Rest()
	if err != nil {
		return clients{}, "", err
	}
	meta, err := metadata.NewForConfig(metadata.ConfigFor(r))
	if err != nil {
		return clients{}, "", fmt.Errorf("discovery.kube: %w", err)
	}
	whole, err := dynamic.NewForConfig(rest.CopyConfig(r))
	if err != nil {
		return clients{}, "", fmt.Errorf("discovery.kube: %w", err)
	}
	typed := rest.CopyConfig(r)
	typed.ContentType, typed.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return clients{}, "", fmt.Errorf("discovery.kube: %w", err)
	}
	return clients{client, meta, whole}, r.Host, nil
}
