package cniplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// Type is what the plugin is called: in a network configuration, and as a file.
const Type = "isthmus-cni"

// Values of failurePolicy.
const (
	Ignore = "Ignore"
	Fail   = "Fail"
)

// Defaults of a configuration, and bounds of its timeout.
const (
	DefaultSocket  = "/run/isthmus/cni.sock"
	DefaultTimeout = 5 * time.Second
	leastTimeout   = 100 * time.Millisecond
	mostTimeout    = 30 * time.Second // kubelets give a sandbox two minutes, and what is before this plugin takes some
)

// Config is the plugin's part of a network configuration, as package cniinstall writes it.
type Config struct {
	Type string `json:"type"`
	// Socket is where the node proxy listens.
	Socket string `json:"socket,omitempty"`
	// Timeout is how long a pod waits at most, such as 5s.
	Timeout string `json:"timeout,omitempty"`
	// FailurePolicy is what becomes of a pod that nobody has captured by then: Ignore, it starts; Fail, it is tried again.
	FailurePolicy string `json:"failurePolicy,omitempty"`
	// ExcludeNamespaces are those of Kubernetes whose pods never wait.
	ExcludeNamespaces []string `json:"excludeNamespaces,omitempty"`
	// Capabilities have the runtime say by which servers the pod will resolve names.
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// call is what the plugin is called with.
type call struct {
	Config
	network types.PluginConf // what all plugins have
	dns     *dns             // nil: the runtime has not said
	timeout time.Duration
	unknown []string // keys that nobody knows, sorted
}

// dns is what runtimes write for the capability dns.
type dns struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

func (d *dns) message() *cnisocket.DNS {
	if d == nil {
		return nil
	}
	return &cnisocket.DNS{Servers: d.Servers, Search: d.Searches, Options: d.Options}
}

// read reads a configuration; an error is one of CNI.
func read(stdin []byte) (*call, error) {
	c := &call{}
	var runtime struct {
		Config struct {
			DNS *dns `json:"dns"`
		} `json:"runtimeConfig"`
	}
	err := errors.Join(json.Unmarshal(stdin, &c.network), json.Unmarshal(stdin, &c.Config), json.Unmarshal(stdin, &runtime))
	if c.dns = runtime.Config.DNS; err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read", err.Error())
	}
	if err := c.Check(); err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the configuration of "+Type+" is wrong", err.Error())
	}
	c.timeout, _ = time.ParseDuration(c.Timeout)
	c.unknown = unknown(stdin)
	return c, nil
}

var (
	// ownKeys are those of Config.
	ownKeys = []string{"socket", "timeout", "failurePolicy", "excludeNamespaces"}
	// sharedKeys are those that CNI gives to every plugin and list (SPEC 1.1.0), which runtimes may add.
	sharedKeys = []string{"cniVersion", "cniVersions", "name", "type", "args", "capabilities", "runtimeConfig", "prevResult", "ipMasq", "ipam", "dns", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"}
)

// unknown returns the keys of a network configuration that nobody knows, sorted: not those of a domain, as cni.dev/attachments,
// nor those that begin with an underscore, as comments do.
func unknown(config []byte) (keys []string) {
	var all map[string]json.RawMessage
	if json.Unmarshal(config, &all) != nil {
		return nil
	}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		known := func(o string) bool { return strings.EqualFold(k, o) } // as encoding/json takes them
		if !strings.Contains(k, "/") && !strings.HasPrefix(k, "_") && !slices.ContainsFunc(ownKeys, known) && !slices.ContainsFunc(sharedKeys, known) {
			keys = append(keys, k)
		}
	}
	return keys
}

// warn says which keys count for nothing. They stop nothing: a pod is not to wait, and a node not to be without a network,
// for a key that a runtime of later has, or that somebody has misspelt.
func (c *call) warn(w io.Writer) {
	for _, k := range c.unknown {
		fmt.Fprintf(w, "%s: the network configuration has the key %.100q, which is unknown and counts for nothing: %s\n", Type, k, strictyaml.Suggest(k, ownKeys))
	}
}

// Check fills in defaults, and names the first field that is wrong.
func (c *Config) Check() error {
	if c.Socket == "" {
		c.Socket = DefaultSocket
	}
	if !filepath.IsAbs(c.Socket) {
		return fmt.Errorf("socket %.200q is no absolute path: write that of the node proxy's capture.cniSocket, such as %s", c.Socket, DefaultSocket)
	}
	if c.Timeout == "" {
		c.Timeout = DefaultTimeout.String()
	}
	if t, err := time.ParseDuration(c.Timeout); err != nil || t < leastTimeout || t > mostTimeout {
		return fmt.Errorf("timeout %.200q is no duration of %v to %v: write one such as %v", c.Timeout, leastTimeout, mostTimeout, DefaultTimeout)
	}
	if c.FailurePolicy == "" {
		c.FailurePolicy = Ignore
	}
	if !slices.Contains([]string{Ignore, Fail}, c.FailurePolicy) {
		return fmt.Errorf("failurePolicy %.200q is unknown: use %s or %s", c.FailurePolicy, Ignore, Fail)
	}
	return nil
}
