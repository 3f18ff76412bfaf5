package drill

import "time"

// Kind says what a fault does.
type Kind string

// The kinds of faults.
const (
	Refuse        Kind = "refuse"
	Silent        Kind = "silent"
	Hang          Kind = "hang"
	PodKill       Kind = "podKill"
	GatewayKill   Kind = "gatewayKill"
	NodeProxyKill Kind = "nodeproxyKill"
	FederationCut Kind = "federationCut"
)

// kinds lists what each kind does to what it is aimed at.
var kinds = []struct {
	Kind   Kind
	Target string // pods, gateway, node or networks
	Doc    string
}{
	{Refuse, "pods", "the application refuses new connections on a port (or all of them)"},
	{Silent, "pods", "the application accepts connections and never answers"},
	{Hang, "pods", "TCP connects to the application get no answer"},
	{PodKill, "pods", "the application's process is killed with SIGKILL, and started again"},
	{GatewayKill, "gateway", "a gateway is killed with SIGKILL, and started again"},
	{NodeProxyKill, "node", "a node proxy is killed with SIGKILL, and started again"},
	{FederationCut, "networks", "nothing passes between gateways of different networks; connections stay open"},
}

// Fault is one thing that goes wrong.
type Fault struct {
	Name   string        `yaml:"name" json:"name" doc:"name that assertions use; the kind when left out"`
	Kind   Kind          `yaml:"kind" json:"kind" doc:"refuse, silent, hang, podKill, gatewayKill, nodeproxyKill or federationCut"`
	At     time.Duration `yaml:"at" json:"at" doc:"when it begins, from the first arrival"`
	Until  time.Duration `yaml:"until" json:"until" doc:"when it heals; never when left out"`
	Target Target        `yaml:"target" json:"target"`
}

// Target selects what a fault hits.
type Target struct {
	Network  string   `yaml:"network" json:"network,omitempty" doc:"network of the pods, the gateway or the node"`
	Pods     Count    `yaml:"pods" json:"pods,omitzero" doc:"how many of its pods, chosen by the seed: a number, a share such as 20 %, or all"`
	Names    []string `yaml:"names" json:"names,omitempty" doc:"these pods, instead of a number"`
	Port     string   `yaml:"port" json:"port,omitempty" doc:"name of the port that falls ill; all when left out"`
	Gateway  int      `yaml:"gateway" json:"gateway,omitempty" doc:"which of the network's gateways, from 1"`
	Node     int      `yaml:"node" json:"node,omitempty" doc:"which of the network's nodes, from 1"`
	Networks []string `yaml:"networks" json:"networks,omitempty" doc:"federationCut: cut these networks off from all others; every network when left out"`
}
