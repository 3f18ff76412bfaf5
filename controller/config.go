package controller

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/isthmus-mesh/isthmus/controller/vip"
	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/discovery/kube"
	"github.com/isthmus-mesh/isthmus/discovery/kube/owned"
	"github.com/isthmus-mesh/isthmus/identity"
	"github.com/isthmus-mesh/isthmus/internal/admin"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Config is the YAML of one controller process.
type Config struct {
	Name                  string   `yaml:"name" doc:"name of this process among the controllers of the cluster: the name of its pod" env:"POD_NAME"`
	Namespace             string   `yaml:"namespace" default:"isthmus-system" doc:"namespace of its Lease and of the ConfigMap of virtual addresses" env:"POD_NAMESPACE"`
	Network               string   `yaml:"network" doc:"network of the cluster" env:"NETWORK"`
	TrustDomain           string   `yaml:"trustDomain" default:"cluster.local" doc:"trust domain of this process and of the gateways" env:"TRUST_DOMAIN"`
	ServiceAccount        string   `yaml:"serviceAccount" default:"isthmus-system/controller" doc:"namespace/name of the service account that this process runs as; gateways let only this account follow all exports (their controllerServiceAccount)" env:"ISTHMUS_SERVICE_ACCOUNT"`
	Gateways              []string `yaml:"gateways" doc:"host:port of the gateways of the own network, the sources of other networks' exports. A host name stands for all of its addresses and is resolved every 5 s" env:"ISTHMUS_GATEWAYS"`
	NodeServiceAccount    string   `yaml:"nodeServiceAccount" default:"isthmus-system/nodeproxy" doc:"namespace/name of the service account that node proxies run as: it may request certificates for the pods on its node" env:"ISTHMUS_NODE_SERVICE_ACCOUNT"`
	GatewayServiceAccount string   `yaml:"gatewayServiceAccount" default:"isthmus-system/gateway" doc:"namespace/name of the service account that these gateways run as" env:"ISTHMUS_GATEWAY_SERVICE_ACCOUNT"`
	StartupTaint          string   `yaml:"startupTaint" doc:"key of a taint that nodes register with, such as isthmus.io/agent-not-ready. The leader removes it, with any value and effect, once the node proxy on the node is ready, and never sets it. Needs patch for nodes. Empty: no taint is removed" env:"ISTHMUS_STARTUP_TAINT"`

	Discovery  Discovery              `yaml:"discovery"`
	Lease      Lease                  `yaml:"lease"`
	VIPs       VIPs                   `yaml:"vips"`
	Federation Federation             `yaml:"federation"`
	Identity   identity.Config        `yaml:"identity"`
	CA         CA                     `yaml:"ca"`
	Admin      admin.Config           `yaml:"admin"`
	Operations admin.OperationsConfig `yaml:"operations"`
	Log        logging.Config         `yaml:"log"`
}

// Discovery has the cluster of this controller.
type Discovery struct {
	Kube kube.Config `yaml:"kube"`
}

// Lease configures the leader election of several controllers.
type Lease struct {
	Name     string        `yaml:"name" default:"isthmus-controller" doc:"name of the Lease that the leader holds; only the leader writes to the cluster"`
	Duration time.Duration `yaml:"duration" default:"15s" doc:"time after which a leader that does not renew its Lease is replaced; it stops writing after two thirds of it. At least 2s"`
}

// VIPs are the virtual addresses of imported services.
type VIPs struct {
	IPv4  netip.Prefix   `yaml:"ipv4" default:"240.240.0.0/16" doc:"range of IPv4 addresses for imported services, for their use only; of a range shorter than /16 the first 65536 are used. Empty: no IPv4 addresses"`
	IPv6  netip.Prefix   `yaml:"ipv6" default:"2001:2::/48" doc:"as ipv4, for IPv6"`
	InUse []netip.Prefix `yaml:"inUse" doc:"ranges in use by others: an overlap with the ranges above is a problem. An example is istiod (PILOT_IP_AUTOALLOCATE_IPV4_PREFIX, by default also 240.240.0.0/16), if it assigns addresses to ServiceEntries. Addresses of Services and ranges of pods are found automatically"`
}

func (v VIPs) ranges() vip.Ranges { return vip.Ranges{V4: v.IPv4, V6: v.IPv6} }

// CA is the service that issues certificates to node proxies and gateways of this cluster.
// Every controller serves it, not only the leader.
type CA struct {
	Address netip.AddrPort `yaml:"address" doc:"address and port of the CA, which serves Istio's certificate protocol, such as 0.0.0.0:15012. Clients present a bound service-account token of audience istio-ca. A node proxy gets its own certificate and those for service accounts of live pods on its node, a gateway only its own. Left out, there is no CA" env:"ISTHMUS_CA_ADDRESS"`
	Dir     string         `yaml:"dir" doc:"directory of the CA (ca.pem, ca-key.pem, and bundle.pem during a root rotation), read again when it changes; identity.dir when left out and identity.source is ca" env:"ISTHMUS_CA_DIR"`
	TTL     time.Duration  `yaml:"ttl" default:"1h" doc:"longest lifetime of a certificate" env:"ISTHMUS_CA_TTL"`
	Names   []string       `yaml:"names" doc:"further host names of the CA. Always included: isthmus-controller.<namespace>.svc and isthmus-controller.<namespace>.svc.cluster.local, istiod.istio-system.svc, localhost. With another cluster domain, add isthmus-controller.<namespace>.svc.DOMAIN if clients use it; the chart's clients use the name that ends with .svc"`
	Keys    string         `yaml:"keys" doc:"file that keeps the public keys of the API server across restarts, so that tokens are accepted while it is unreachable; left out, they are kept in memory only" env:"ISTHMUS_CA_KEYS"`
}

// dir returns the directory of the CA.
func (c Config) caDir() string {
	if c.CA.Dir == "" && (c.Identity.Source == "ca" || c.Identity.Source == "") {
		return c.Identity.Dir
	}
	return c.CA.Dir
}

// Federation has the links to other networks.
type Federation struct {
	Networks  string `yaml:"networks" doc:"file with the other networks, their public keys and the bounds on their exports, the same as that of node proxies; read again every 10 s. Until the file exists, existing imports stay as they are. Left out, nothing is imported" env:"ISTHMUS_FEDERATION_NETWORKS"`
	ConfigMap string `yaml:"configMap" default:"isthmus-networks" doc:"name of the ConfigMap, in the namespace of this process, that isthmus link writes networks to; Events about links refer to it"`
}

// DefaultConfig returns what a key that is left out means.
func DefaultConfig() Config {
	r := vip.DefaultRanges()
	return Config{
		Namespace: "isthmus-system", TrustDomain: "cluster.local", ServiceAccount: "isthmus-system/controller", NodeServiceAccount: "isthmus-system/nodeproxy", GatewayServiceAccount: "isthmus-system/gateway",
		Discovery: Discovery{kube.DefaultConfig()}, Lease: Lease{"isthmus-controller", 15 * time.Second}, VIPs: VIPs{IPv4: r.V4, IPv6: r.V6}, Federation: Federation{ConfigMap: "isthmus-networks"},
		CA:    CA{TTL: identity.DefaultTTL},
		Admin: admin.Config{Address: netip.MustParseAddrPort("127.0.0.1:15000")}, Log: logging.Config{Level: "info", Format: "auto"},
	}
}

// LoadConfig reads the file at path over the defaults and the environment over both, and
// validates the result.
func LoadConfig(path string) (Config, []string, error) {
	return strictyaml.LoadValid(path, DefaultConfig(), func(Config) error { return nil })
}

// Validate names each field that cannot be, its value and the remedy, in the order of the
// fields.
func (c Config) Validate() (warnings []string, err error) {
	var v strictyaml.Check
	v.Required("name", c.Name, "give this process a name of its own, such as that of its pod (POD_NAME)")
	if discovery.NetworkName(c.Namespace) != nil { // which is a label as well
		v.Fail("namespace", "%q is not the name of a namespace: write such as isthmus-system", c.Namespace)
	}
	v.Required("network", c.Network, "give the network that the cluster is")
	_, err = c.account(c.ServiceAccount, "serviceAccount", true)
	v.Join(err)
	for i, g := range c.Gateways {
		if _, _, err := splitAddress(g); err != nil {
			v.Fail("gateways["+strconv.Itoa(i)+"]", "%q: %w: write such as isthmus-gateway-nodes.isthmus-system.svc:15008", g, err)
		}
	}
	_, err = c.account(c.NodeServiceAccount, "nodeServiceAccount", false)
	v.Join(err)
	_, err = c.account(c.GatewayServiceAccount, "gatewayServiceAccount", false)
	v.Join(err)
	if c.StartupTaint != "" {
		if err := owned.CheckTaint(c.StartupTaint); err != nil {
			v.Fail("startupTaint", "%w: write such as isthmus.io/agent-not-ready, or leave it out", err)
		}
	}
	if !c.Discovery.Kube.Enabled() {
		v.Fail("discovery.kube.inCluster", "must be set, or discovery.kube.kubeconfig: the cluster that this controller is for")
	}
	v.Join(c.Discovery.Kube.Validate())
	if discovery.NetworkName(c.Lease.Name) != nil {
		v.Fail("lease.name", "%q is not a name: write such as isthmus-controller", c.Lease.Name)
	}
	if c.Lease.Duration < 2*time.Second {
		v.Fail("lease.duration", "%v is too short: want at least 2s", c.Lease.Duration)
	}
	c.VIPs.ranges().Check(func(field, format string, args ...any) { v.Fail(field, format, args...) })
	for i, p := range c.VIPs.InUse {
		if own, over := c.VIPs.ranges().Overlaps(p); over {
			warnings = append(warnings, "vips.inUse["+strconv.Itoa(i)+"]: "+p.String()+" overlaps "+own.String()+", from which imported services get their addresses: give one of the two another range")
		}
	}
	if c.Federation.Networks == "" {
		warnings = append(warnings, "federation.networks is not set: nothing that other networks export is imported; name the file that lists them")
	}
	if discovery.NetworkName(c.Federation.ConfigMap) != nil {
		v.Fail("federation.configMap", "%q is not a name: write such as isthmus-networks", c.Federation.ConfigMap)
	}
	v.Join(c.Identity.Validate())
	if c.CA.Address.IsValid() {
		v.Required("ca.dir", c.caDir(), "name the directory of the CA (`isthmus ca init`)")
	}
	if c.CA.TTL < identity.MinTTL {
		v.Fail("ca.ttl", "%s is too short: want at least %s", c.CA.TTL, identity.MinTTL)
	}
	v.Join(c.Admin.Validate())
	v.Join(c.Log.Validate())
	return warnings, v.Err()
}

// Instance returns the name of this process in log lines.
func (c Config) Instance() string { return c.Network + "/" + c.Name }

// account is the identity of a service account.
func (c Config) account(account, field string, domain bool) (spiffeid.ID, error) {
	var v strictyaml.Check
	id, wrong, odd := identity.ParseAccount(c.TrustDomain, account)
	if domain {
		v.Field("trustDomain", wrong)
	}
	v.Field(field, odd)
	return id, v.Err()
}

// splitAddress takes apart host:port.
func splitAddress(s string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strings.TrimSpace(host) == "" {
		return "", 0, &net.AddrError{Err: "no host and port", Addr: s}
	}
	return host, uint16(n), nil
}
