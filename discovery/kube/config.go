package kube

import (
	"fmt"
	"os"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Config is the part of a process's YAML that says whose objects it follows. The zero
// Config follows nobody's.
type Config struct {
	InCluster       bool   `yaml:"inCluster" default:"false" doc:"true: follow the API server of the cluster that this process runs in as a pod, as its service account; it needs the verbs list and watch for pods, services, nodes, namespaces, endpointslices.discovery.k8s.io and serviceexports.multicluster.x-k8s.io" env:"ISTHMUS_KUBE_IN_CLUSTER"`
	Kubeconfig      string `yaml:"kubeconfig" doc:"instead of inCluster: path of a kubeconfig file, of which the current context counts" env:"ISTHMUS_KUBECONFIG"`
	SystemNamespace string `yaml:"systemNamespace" default:"istio-system" doc:"namespace whose label topology.istio.io/network says which network the cluster is: another one than network is a problem" env:"ISTHMUS_SYSTEM_NAMESPACE"`
}

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config { return Config{SystemNamespace: "istio-system"} }

// Enabled reports whether there is a cluster to follow.
func (c Config) Enabled() bool { return c.InCluster || c.Kubeconfig != "" }

// Validate names each field that cannot be, its value and what to do, in the order of the
// fields. It reads the kubeconfig, and asks no API server.
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
	if discovery.NetworkName(c.SystemNamespace) != nil { // which is a label as well
		v.Fail("discovery.kube.systemNamespace", "%q is not the name of a namespace: write such as istio-system", c.SystemNamespace)
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

// clients returns those of the API server, and its address.
func (c Config) clients() (kubernetes.Interface, metadata.Interface, string, error) {
	r, err := c.rest()
	if err != nil {
		return nil, nil, "", err
	}
	r.UserAgent = "isthmus"
	r.WarningHandlerWithContext = rest.NoWarnings{}
	meta, err := metadata.NewForConfig(metadata.ConfigFor(r))
	if err != nil {
		return nil, nil, "", fmt.Errorf("discovery.kube: %w", err)
	}
	typed := rest.CopyConfig(r)
	typed.ContentType, typed.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	client, err := kubernetes.NewForConfig(typed)
	if err != nil {
		return nil, nil, "", fmt.Errorf("discovery.kube: %w", err)
	}
	return client, meta, r.Host, nil
}
