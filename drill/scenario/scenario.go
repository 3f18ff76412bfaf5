package scenario

import "time"

// Scenario is one drill as a person writes it. See examples/drills/README.md.
type Scenario struct {
	Name        string        `yaml:"name" json:"name" doc:"short name, also of the output folder: lower-case letters, digits and dashes"`
	Description string        `yaml:"description" json:"description,omitempty" doc:"what the drill shows, for the report"`
	Seed        uint64        `yaml:"seed" json:"seed" default:"1" doc:"decides arrivals and victims; --seed overrides it"`
	Duration    time.Duration `yaml:"duration" json:"duration" doc:"how long traffic runs in each arm, start to end"`
	Settle      time.Duration `yaml:"settle" json:"settle" default:"1s" doc:"time to leave out at the start of each phase where shares are measured"`
	Networks    []Network     `yaml:"networks" json:"networks" doc:"the networks, each with its own gateways"`
	Services    []Service     `yaml:"services" json:"services" doc:"services that every pod is a member of"`
	Clients     []Clients     `yaml:"clients" json:"clients" doc:"where connections come from"`
	Traffic     Traffic       `yaml:"traffic" json:"traffic"`
	Faults      []Fault       `yaml:"faults" json:"faults" doc:"faults, each with its time"`
	Arms        []Arm         `yaml:"arms" json:"arms" doc:"settings to run the same drill with, one after the other"`
	Assertions  []Assertion   `yaml:"assertions" json:"assertions" doc:"conditions that must hold"`
}

// Network is one network and the processes on it.
type Network struct {
	Name     string   `yaml:"name" json:"name" doc:"name: lower-case letters, digits and dashes"`
	Gateways int      `yaml:"gateways" json:"gateways" default:"1" doc:"number of gateways, named <network>-gw-1 and so on"`
	Nodes    int      `yaml:"nodes" json:"nodes" default:"1" doc:"number of nodes, each with a node proxy, named <network>-node-1 and so on"`
	Pods     int      `yaml:"pods" json:"pods" doc:"number of pods, spread over the nodes, named <network>-1 and so on"`
	Capacity uint32   `yaml:"capacity" json:"capacity" default:"1" doc:"weight of each of its pods"`
	Locality Locality `yaml:"locality" json:"locality,omitzero"`
}

// Locality is where a network's pods and gateways are.
type Locality struct {
	Region string `yaml:"region" json:"region,omitempty" doc:"region of the network's pods and gateways"`
	Zone   string `yaml:"zone" json:"zone,omitempty" doc:"zone of the network's pods and gateways"`
}

// Service is one global service; every pod listens on each of its ports.
type Service struct {
	Name                string `yaml:"name" json:"name" doc:"name; its hostname is <name>.default.svc.cluster.local"`
	TrafficDistribution string `yaml:"trafficDistribution" json:"trafficDistribution,omitempty" doc:"as in discovery; PreferNetwork when left out"`
	Ports               []Port `yaml:"ports" json:"ports" doc:"its ports; names and numbers are unique in the scenario"`
}

// Port is one port of a service.
type Port struct {
	Name string `yaml:"name" json:"name" doc:"name that faults and assertions use"`
	Port uint16 `yaml:"port" json:"port" doc:"service port, and where the pods listen without targetPort; below 1024 it needs one"`
	// Target is Port when left out.
	Target uint16 `yaml:"targetPort" json:"targetPort" doc:"where the pods listen"`
}

// Clients is a group of clients: one per node.
type Clients struct {
	Network string `yaml:"network" json:"network" doc:"network the clients are on"`
	Nodes   int    `yaml:"nodes" json:"nodes" doc:"number of its nodes with clients; all when left out"`
}

// Traffic is what clients do: new connections on a fixed schedule that does
// not slow down when answers do (open loop).
type Traffic struct {
	Rate     float64       `yaml:"rate" json:"rate" default:"100" doc:"new connections per second of all clients together, split evenly over clients and ports"`
	Arrivals string        `yaml:"arrivals" json:"arrivals" default:"poisson" doc:"poisson or uniform"`
	Exchange string        `yaml:"exchange" json:"exchange" default:"request" doc:"request: the client speaks first; banner: the application does"`
	Timeout  time.Duration `yaml:"timeout" json:"timeout" default:"5s" doc:"a first exchange that takes longer has failed"`
	Abort    Share         `yaml:"abort" json:"abort" doc:"share of connections that the client aborts on purpose at a random point, counted separately from failures"`
	Hold     Hold          `yaml:"hold" json:"hold"`
	Surge    Surge         `yaml:"surge" json:"surge,omitzero"`
}

// Hold keeps some connections open after the first exchange, to see which of
// them a fault cuts.
type Hold struct {
	Fraction Share         `yaml:"fraction" json:"fraction" doc:"share of connections that stay open, 0.02 or 2 %"`
	For      time.Duration `yaml:"for" json:"for" default:"5s" doc:"how long they stay open"`
	Every    time.Duration `yaml:"every" json:"every" default:"500ms" doc:"interval of lines exchanged on an open connection"`
}

// Arm is one way to set up the same binaries.
type Arm struct {
	Name             string   `yaml:"name" json:"name" doc:"name of the arm"`
	Description      string   `yaml:"description" json:"description,omitempty" doc:"one line for the report"`
	OutlierDetection Outlier  `yaml:"outlierDetection" json:"outlierDetection"`
	Retry            Retry    `yaml:"retry" json:"retry"`
	Federation       Gossip   `yaml:"federation" json:"federation"`
	Lines            Lines    `yaml:"lines" json:"lines,omitzero"`
	Traffic          Override `yaml:"traffic" json:"traffic,omitzero"`
}

// Outlier is an arm's outlier detection, as in the processes' own YAML.
type Outlier struct {
	Scope            string   `yaml:"scope" json:"scope" default:"endpoint" doc:"endpoint, networkService or none"`
	Listeners        *bool    `yaml:"listeners" json:"listeners,omitempty" doc:"whether node proxies watch the listening sockets of their pods; the processes' default when left out"`
	Mode             string   `yaml:"mode" json:"mode,omitempty" doc:"hybrid, circuitBreaker, ewma or off; the processes' default when left out"`
	FailureThreshold *int     `yaml:"failureThreshold" json:"failureThreshold,omitempty" doc:"consecutive failures that eject; the processes' default when left out"`
	BaseBackoffSecs  *float64 `yaml:"baseBackoffSecs" json:"baseBackoffSecs,omitempty" doc:"first ejection in seconds; the processes' default when left out"`
}

// Retry is an arm's connect-phase retry.
type Retry struct {
	Attempts *int `yaml:"attempts" json:"attempts,omitempty" doc:"how many more times a connect is tried after the first, 0 to 100; the processes' default when left out"`
}

// Gossip is an arm's federation.
type Gossip struct {
	Health *bool `yaml:"health" json:"health" default:"true" doc:"whether node proxies and gateways exchange health"`
}

// Lines is how an arm's node proxies connect to gateways.
type Lines struct {
	Transport string `yaml:"transport" json:"transport,omitempty" doc:"tcp, quic or auto, as lines.transport of gateways and node proxies; the processes' default when left out"`
}

// Override is traffic that one arm changes.
type Override struct {
	Exchange string `yaml:"exchange" json:"exchange,omitempty" doc:"as traffic.exchange, for this arm"`
}

// Assertion is one thing that must hold.
type Assertion struct {
	Arm    string `yaml:"arm" json:"arm" doc:"arm it is about; every arm when left out"`
	Name   string `yaml:"name" json:"name" doc:"description of the claim; the metric when left out"`
	Metric string `yaml:"metric" json:"metric" doc:"measured quantity: a name of the closed list, with selectors in parentheses"`
	Bound  string `yaml:"bound" json:"bound" doc:"an operator (==, !=, <, <=, >, >=) and a number"`
}
