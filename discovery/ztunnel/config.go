package ztunnel

import (
	"bytes"
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Config is the root of ztunnel's local configuration. A key that ztunnel does
// not know is an error there, so there is none that it does not need.
type Config struct {
	Workloads []Workload      `yaml:"workloads"`
	Services  []Service       `yaml:"services"`
	Policies  []Authorization `yaml:"policies"`
}

// Workload is a pod, a whole service on another network (a split-horizon
// workload: no addresses, a gateway instead), or a gateway.
type Workload struct {
	UID            string          `yaml:"uid"`
	Name           string          `yaml:"name"`
	Namespace      string          `yaml:"namespace"`
	TrustDomain    string          `yaml:"trustDomain"`
	ServiceAccount string          `yaml:"serviceAccount,omitempty"`
	WorkloadIPs    []string        `yaml:"workloadIps,flow"`
	Network        string          `yaml:"network"`
	Node           string          `yaml:"node,omitempty"`
	ClusterID      string          `yaml:"clusterId,omitempty"`
	Protocol       string          `yaml:"protocol"`
	Status         string          `yaml:"status,omitempty"` // Healthy when left out
	Locality       *Locality       `yaml:"locality,omitempty,flow"`
	Capacity       uint32          `yaml:"capacity,omitempty"` // 1 when left out
	NetworkGateway *NetworkGateway `yaml:"networkGateway,omitempty,flow"`
	// Services maps "namespace/hostname" to service port and target port.
	Services map[string]map[uint16]uint16 `yaml:"services"`
	// AuthorizationPolicies are those with a selector, "namespace/name".
	AuthorizationPolicies []string `yaml:"authorizationPolicies,omitempty,flow"`
}

// Locality must be complete: ztunnel refuses one with a key left out.
type Locality struct {
	Region  string `yaml:"region"`
	Zone    string `yaml:"zone"`
	Subzone string `yaml:"subzone"`
}

// NetworkGateway is "network/address" and the port of a gateway. The address
// must be that of a workload, or ztunnel does not find it.
type NetworkGateway struct {
	Destination   string `yaml:"destination"`
	HBONEMTLSPort uint16 `yaml:"hboneMtlsPort"`
}

// Service is a name with its virtual addresses, "network/address" each.
type Service struct {
	Name            string            `yaml:"name"`
	Namespace       string            `yaml:"namespace"`
	Hostname        string            `yaml:"hostname"`
	VIPs            []string          `yaml:"vips,flow"`
	Ports           map[uint16]uint16 `yaml:"ports,flow"`
	SubjectAltNames []string          `yaml:"subjectAltNames,omitempty"`
	LoadBalancer    *LoadBalancer     `yaml:"loadBalancer,omitempty"`
}

// LoadBalancer must be complete, as Locality.
type LoadBalancer struct {
	RoutingPreferences []string `yaml:"routingPreferences,flow"`
	Mode               string   `yaml:"mode"`
	HealthPolicy       string   `yaml:"healthPolicy"`
}

// Marshal returns c as ztunnel reads it. The same Config gives the same bytes.
func (c Config) Marshal() ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(c); err != nil {
		return nil, fmt.Errorf("encode ztunnel configuration: %w", err)
	}
	return b.Bytes(), nil
}
