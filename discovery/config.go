package discovery

import (
	"net/netip"

	"github.com/isthmus-mesh/isthmus/mesh"
	"github.com/isthmus-mesh/isthmus/policy"
)

// DefaultTrustDomain is the trust domain of a mesh that names none.
const DefaultTrustDomain = "cluster.local"

// Defaults of single fields.
const (
	defaultNamespace      = "default"
	defaultServiceAccount = "default"
	// DefaultGatewayServiceAccount is the service account of a gateway without one in the file.
	DefaultGatewayServiceAccount = "isthmus-system/gateway"
)

// Config describes a whole mesh. It is the root of the YAML that discovery/file
// reads. Other sources convert their objects to it.
type Config struct {
	// Confirm is the identifier of the one content that may exceed MaxRemoval; see package discovery/file.
	Confirm     string `yaml:"confirm" doc:"identifier of the file's content, from the log. Set it to apply a change that is pending because it removes too much"`
	TrustDomain string `yaml:"trustDomain" default:"cluster.local" doc:"SPIFFE trust domain of every identity in this file"`
	// TrafficDistribution is the default for services if neither they nor their
	// namespaces set one.
	TrafficDistribution string      `yaml:"trafficDistribution" doc:"default for services if neither the service nor its namespace sets one; PreferNetwork when left out"`
	Namespaces          []Namespace `yaml:"namespaces" doc:"defaults for the services of a namespace; namespaces without defaults need no entry"`
	Networks            []Network   `yaml:"networks" doc:"every network of the mesh; addresses are scoped to their network"`
	Gateways            []Gateway   `yaml:"gateways" doc:"every gateway instance of every network"`
	Services            []Service   `yaml:"services" doc:"services, each with its names and ports"`
	Shares              []Share     `yaml:"shares" doc:"remote services: services as other networks offer them, where their workloads are not listed"`
	RootNamespace       string      `yaml:"rootNamespace" default:"istio-system" doc:"namespace of policies that apply to the workloads of every namespace"`
	Policies            []Policy    `yaml:"policies" doc:"access policies: AuthorizationPolicy and PeerAuthentication objects of security.istio.io, as in Istio"`
	Workloads           []Workload  `yaml:"workloads" doc:"every running instance; of other networks, only instances of services without an entry under shares for that network"`
}

// DefaultConfig returns what a root key that is left out means.
func DefaultConfig() Config {
	return Config{TrustDomain: DefaultTrustDomain, RootNamespace: policy.DefaultRootNamespace}
}

// Namespace has the defaults for the services of one namespace.
type Namespace struct {
	Name                string `yaml:"name" doc:"required"`
	TrafficDistribution string `yaml:"trafficDistribution" doc:"default for its services that set none"`
}

// Network is a set of addresses that reach each other without a gateway.
type Network struct {
	Name    string   `yaml:"name" doc:"required; lower-case letters, digits and hyphens"`
	Segment string   `yaml:"segment" doc:"segment of the network: services of scope segment stay within it. Networks without one form one segment"`
	Nodes   []string `yaml:"nodes" doc:"nodes without workloads so far. A node proxy does not start on a node that is neither listed here nor named by a workload"`
}

// Gateway is one instance of a network's east-west gateway.
type Gateway struct {
	Name              string           `yaml:"name" doc:"required; unique on its network; the gateway process has the same name in its own file"`
	Network           string           `yaml:"network" doc:"required; the network behind it"`
	Address           netip.AddrPort   `yaml:"address" doc:"required; where node proxies of other networks dial it. Replicas behind a load balancer may share one; each then needs its own federationAddress"`
	MoreAddresses     []netip.AddrPort `yaml:"moreAddresses" doc:"further addresses for node proxies of other networks, such as those of a load balancer; tried in turn"`
	QUICAddresses     []netip.AddrPort `yaml:"quicAddresses" doc:"addresses for QUIC from node proxies of other networks (lines.transport), such as a UDP-only load balancer; address and moreAddresses when left out"`
	ServiceAccount    string           `yaml:"serviceAccount" default:"isthmus-system/gateway" doc:"namespace/name of its service account: the identity it must present"`
	TrustDomain       string           `yaml:"trustDomain" doc:"trust domain of that identity; that of the mesh when left out. Another one is verified with trustBundles of federation.networks"`
	Locality          Locality         `yaml:"locality"`
	Drained           bool             `yaml:"drained" doc:"true: takes no new connections while another gateway of its network serves"`
	FederationAddress netip.AddrPort   `yaml:"federationAddress" doc:"where other gateways dial it for gossip, and node proxies of its network if other gateways share its address; address when left out"`
	Group             string           `yaml:"-"` // see mesh.Gateway
	Sources           []netip.Prefix   `yaml:"sources" doc:"sources of its connections to pods, such as 10.0.0.7/32. Node proxies restrict these connections to exported services; address and federationAddress when left out"`
}

// Service is a name, ports and virtual addresses for a set of workloads.
type Service struct {
	Name                string        `yaml:"name" doc:"required"`
	Namespace           string        `yaml:"namespace" default:"default" doc:"its namespace"`
	Hostname            string        `yaml:"hostname" doc:"canonical name, unique in the mesh; <name>.<namespace>.svc.cluster.local when left out"`
	Aliases             []string      `yaml:"aliases" doc:"other names; a global service also has <name>.<namespace>.mesh.internal"`
	VIPs                []netip.Addr  `yaml:"vips" doc:"virtual addresses, unique in the mesh"`
	Global              bool          `yaml:"global" doc:"true: reachable from other networks, through gateways; short for scope: global and takeover: true"`
	Scope               string        `yaml:"scope" default:"cluster" doc:"reach of the service: cluster (its own network), segment (networks of the same segment as its workloads), global, or global-only (global with takeover)"`
	Takeover            bool          `yaml:"takeover" doc:"true: its hostname and virtual addresses lead to other networks too; otherwise only its aliases do"`
	TrafficDistribution string        `yaml:"trafficDistribution" doc:"order of endpoints: PreferNetwork, PreferClose, PreferSameZone, PreferSameNode, PreferRegion, isthmus/RegionFirst, Any or StrictNode (case is ignored); default: that of the namespace, then that of the mesh. StrictNode (only workloads of the client's node) applies to clients on the service's network. Clients on other networks use PreferNetwork"`
	PublishNotReady     bool          `yaml:"publishNotReady" doc:"true: workloads that are not ready count as ready"`
	Ports               []ServicePort `yaml:"ports" doc:"required; at least one"`

	// Inherited has the defaults from namespace and mesh, filled in by a [Listing].
	Inherited Inherited `yaml:"-"`
	// NodeLocal restricts clients on the service's own network to workloads of their own node
	// (internalTrafficPolicy: Local). TrafficDistribution then applies to other networks only.
	NodeLocal bool `yaml:"-"`
	// Headless, Affinity, Created and Home are of a Service of Kubernetes; see mesh.Service.
	Headless bool          `yaml:"-"`
	Affinity mesh.Affinity `yaml:"-"`
	Created  int64         `yaml:"-"`
	Home     bool          `yaml:"-"`
	// Import has the names, addresses and ports of other networks' exports of this service; see mesh.Import.
	// The Builder fills it in from a record of its own, such as a ServiceImport.
	Import *Import `yaml:"-"`
}

// Import has what clients dial for the service of other networks, in addition to that of this network.
type Import struct {
	Aliases []string
	VIPs    []netip.Addr
	Ports   []ServicePort
}

// Inherited has the traffic distribution that a service's namespace and the mesh
// set. Empty if unset.
type Inherited struct{ Namespace, Mesh string }

// ServicePort maps a port of a service to the port its applications listen on.
type ServicePort struct {
	Name       string `yaml:"name" doc:"optional; unique in the service"`
	Port       uint16 `yaml:"port" doc:"required; what clients dial, 1 to 65535"`
	TargetPort uint16 `yaml:"targetPort" doc:"port that the application listens on; port when left out"`
	TargetName string `yaml:"targetName" doc:"instead of targetPort: name of the port in the ports of each workload"`
	Protocol   string `yaml:"protocol" default:"TCP" doc:"TCP, UDP or SCTP. Only TCP is carried; ports of the others may share its number"`
}

// NamedPort is a port of one workload that has a name there.
type NamedPort struct {
	Name string `yaml:"name" doc:"required; referenced by targetName of a service"`
	Port uint16 `yaml:"port" doc:"required; port that the application listens on, 1 to 65535"`
}

// Workload is one running instance: a pod or a virtual machine.
type Workload struct {
	UID            string            `yaml:"uid" doc:"required; unique in the whole mesh, and never reused for another instance"`
	Name           string            `yaml:"name" doc:"display name; uid when left out"`
	Namespace      string            `yaml:"namespace" default:"default" doc:"its namespace; part of its identity"`
	ServiceAccount string            `yaml:"serviceAccount" default:"default" doc:"its service account; part of its identity"`
	Network        string            `yaml:"network" doc:"required; the network its addresses are on"`
	Node           string            `yaml:"node" doc:"the node it runs on: node of that node proxy's configuration"`
	Cluster        string            `yaml:"cluster" doc:"the cluster it belongs to, for display and baggage"`
	Addresses      []netip.Addr      `yaml:"addresses" doc:"required; unique on its network; the first is dialed"`
	Locality       Locality          `yaml:"locality"`
	Ready          *bool             `yaml:"ready" default:"true" doc:"false: never selected"`
	State          string            `yaml:"state" doc:"ready, notReady, terminating, or serving: terminating, but selected while no workload is ready. Finer than ready"`
	Capacity       *uint32           `yaml:"capacity" default:"1" doc:"its weight relative to other workloads, 1 to 65535"`
	Ports          []NamedPort       `yaml:"ports" doc:"named ports, for services with targetName"`
	Labels         map[string]string `yaml:"labels" doc:"labels that policies select workloads by"`
	Services       []string          `yaml:"services" doc:"hostnames of the services it is a member of"`
	Protocol       string            `yaml:"protocol" default:"HBONE" doc:"HBONE, or TCP for a workload without a node proxy. No service leads to it: pods captured with capture.scope all reach it by its address, in plain TCP"`

	// Scheduled is true for a pod without an address. Only the node proxy of its node receives it, and it is a
	// member of no service.
	Scheduled bool `yaml:"-"`
	// Outside is true for a Scheduled pod that is not in the mesh, with or without an address. Only its node receives
	// it, so that nothing there waits for the pod.
	Outside bool `yaml:"-"`
}

// Locality places a gateway or a workload. Empty parts are unknown.
type Locality struct {
	Region  string `yaml:"region" doc:"region; empty is unknown"`
	Zone    string `yaml:"zone" doc:"zone in the region; empty is unknown"`
	Subzone string `yaml:"subzone" doc:"part of the zone; empty is unknown"`
}
