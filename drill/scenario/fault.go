package scenario

import (
	"slices"
	"time"
)

// Kind says what a fault does.
type Kind string

// The kinds of faults.
const (
	Refuse        Kind = "refuse"
	Silent        Kind = "silent"
	Hang          Kind = "hang"
	Slow          Kind = "slow"
	Flap          Kind = "flap"
	PodKill       Kind = "podKill"
	GatewayKill   Kind = "gatewayKill"
	NodeProxyKill Kind = "nodeproxyKill"
	Freeze        Kind = "freeze"
	Blackhole     Kind = "blackhole"
	FederationCut Kind = "federationCut"
)

// What a fault may be aimed at.
const (
	AtPods     = "pods"
	AtGateway  = "gateway"
	AtNode     = "node"
	atNetworks = "networks"
)

// kinds lists what each kind does and what it may be aimed at.
var kinds = []struct {
	Kind    Kind
	Targets []string
	Doc     string
}{
	{Refuse, []string{AtPods}, "the application refuses new connections on a port (or all of them)"},
	{Silent, []string{AtPods}, "the application accepts connections and never answers"},
	{Hang, []string{AtPods}, "TCP connects to the application get no answer"},
	{Slow, []string{AtPods}, "the application takes each new connection only after a delay"},
	{Flap, []string{AtPods}, "the application refuses new connections and takes them again, in turn"},
	{PodKill, []string{AtPods}, "the application's process is killed with SIGKILL, and started again"},
	{GatewayKill, []string{AtGateway}, "a gateway is killed with SIGKILL, and started again"},
	{NodeProxyKill, []string{AtNode}, "a node proxy is killed with SIGKILL, and started again"},
	{Freeze, []string{AtPods, AtGateway, AtNode}, "a process is stopped with SIGSTOP, and goes on with SIGCONT"},
	{Blackhole, []string{AtPods, AtGateway}, "packets from and to an address vanish; needs root"},
	{FederationCut, []string{atNetworks}, "nothing passes between gateways of different networks; connections stay open"},
}

// Fault is one thing that goes wrong.
type Fault struct {
	Name   string        `yaml:"name" json:"name" doc:"name that assertions use; the kind when left out"`
	Kind   Kind          `yaml:"kind" json:"kind" doc:"refuse, silent, hang, slow, flap, podKill, gatewayKill, nodeproxyKill, freeze, blackhole or federationCut"`
	At     time.Duration `yaml:"at" json:"at" doc:"start, from the first arrival"`
	Until  time.Duration `yaml:"until" json:"until" doc:"end of the fault; never when left out"`
	Delay  time.Duration `yaml:"delay" json:"delay,omitempty" doc:"slow: delay before the application accepts a connection"`
	Down   time.Duration `yaml:"down" json:"down,omitempty" doc:"flap: how long it refuses in each period; a period starts with it"`
	Up     time.Duration `yaml:"up" json:"up,omitempty" doc:"flap: how long it answers in each period, after down"`
	Target Target        `yaml:"target" json:"target"`
}

// AimedAt is what the fault hits: what its kind allows, by the keys of its
// target if that is more than one thing.
func (f Fault) AimedAt() string {
	may := targetsOf(f.Kind)
	switch {
	case len(may) == 0:
		return ""
	case f.Target.Gateway != 0 && slices.Contains(may, AtGateway):
		return AtGateway
	case f.Target.Node != 0 && slices.Contains(may, AtNode):
		return AtNode
	}
	return may[0]
}

func targetsOf(k Kind) []string {
	for _, v := range kinds {
		if v.Kind == k {
			return v.Targets
		}
	}
	return nil
}

// wholePod reports whether the fault takes every port of a pod.
func (f Fault) wholePod() bool { return f.Kind == PodKill || f.Kind == Freeze || f.Kind == Blackhole }

// NeedsRoot reports whether the fault changes how packets are routed.
func (f Fault) NeedsRoot() bool { return f.Kind == Blackhole }

// Target selects what a fault hits.
type Target struct {
	Network  string   `yaml:"network" json:"network,omitempty" doc:"network of the pods, the gateway or the node"`
	Pods     Count    `yaml:"pods" json:"pods,omitzero" doc:"number of its pods, chosen by the seed: a number, a share such as 20 %, or all"`
	Names    []string `yaml:"names" json:"names,omitempty" doc:"these pods, instead of a number"`
	Port     string   `yaml:"port" json:"port,omitempty" doc:"name of the port that fails; all when left out"`
	Gateway  int      `yaml:"gateway" json:"gateway,omitempty" doc:"which of the network's gateways, from 1"`
	Node     int      `yaml:"node" json:"node,omitempty" doc:"which of the network's nodes, from 1"`
	Networks []string `yaml:"networks" json:"networks,omitempty" doc:"federationCut: cut these networks off from all others; every network when left out"`
}
