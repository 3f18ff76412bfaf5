package scenario

import (
	"fmt"
	"os"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

// Load reads and validates the scenario at path. The error names file, line,
// field, value and remedy of every mistake that was found.
func Load(path string) (*Scenario, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	return Parse(path, data)
}

// Parse is Load for data that was read from name. A key that is left out, or
// is zero where zero means nothing, gets its default.
func Parse(name string, data []byte) (*Scenario, error) {
	doc, err := strictyaml.Parse(name, data)
	if err != nil {
		return nil, err
	}
	s := DefaultScenario()
	unread := doc.Decode(&s)
	s.fill()
	if err := strictyaml.Mistakes(unread, s.validate(doc)); err != nil {
		return nil, err
	}
	return &s, nil
}

// DefaultScenario returns what keys mean that are left out, outside of lists.
func DefaultScenario() Scenario {
	return Scenario{
		Seed: 1, Settle: time.Second,
		Traffic: Traffic{
			Rate: 100, Arrivals: "poisson", Exchange: "request", Timeout: 5 * time.Second,
			Hold: Hold{For: 5 * time.Second, Every: 500 * time.Millisecond},
		},
	}
}

// fill gives list items their defaults.
func (s *Scenario) fill() {
	for i := range s.Networks {
		n := &s.Networks[i]
		orInt(&n.Gateways, 1)
		orInt(&n.Nodes, 1)
		n.Capacity = max(n.Capacity, 1)
	}
	for i := range s.Services {
		for j := range s.Services[i].Ports {
			if p := &s.Services[i].Ports[j]; p.Target == 0 {
				p.Target = p.Port
			}
		}
	}
	for i := range s.Clients {
		if n := s.network(s.Clients[i].Network); n != nil {
			orInt(&s.Clients[i].Nodes, n.Nodes)
		}
	}
	for i := range s.Faults {
		orText(&s.Faults[i].Name, string(s.Faults[i].Kind))
	}
	for i := range s.Arms {
		a := &s.Arms[i]
		orText(&a.OutlierDetection.Scope, "endpoint")
		if a.Federation.Health == nil {
			on := true
			a.Federation.Health = &on
		}
	}
	for i := range s.Assertions {
		orText(&s.Assertions[i].Name, s.Assertions[i].Metric)
	}
}

func orInt(p *int, v int) {
	if *p == 0 {
		*p = v
	}
}

func orText(p *string, v string) {
	if *p == "" {
		*p = v
	}
}

func (s *Scenario) network(name string) *Network {
	for i := range s.Networks {
		if s.Networks[i].Name == name {
			return &s.Networks[i]
		}
	}
	return nil
}

func (s *Scenario) fault(name string) *Fault {
	for i := range s.Faults {
		if s.Faults[i].Name == name {
			return &s.Faults[i]
		}
	}
	return nil
}

// Ports returns every port of every service, in order.
func (s *Scenario) Ports() []Port {
	var out []Port
	for _, v := range s.Services {
		out = append(out, v.Ports...)
	}
	return out
}

// PortByName returns the port that faults and assertions call name.
func (s *Scenario) PortByName(name string) (Port, bool) {
	for _, p := range s.Ports() {
		if p.Name == name {
			return p, true
		}
	}
	return Port{}, false
}

// ServiceOf returns the service that the port called name belongs to.
func (s *Scenario) ServiceOf(name string) Service {
	for _, v := range s.Services {
		for _, p := range v.Ports {
			if p.Name == name {
				return v
			}
		}
	}
	return Service{}
}

// ExchangeOf returns who speaks first in an arm.
func (s *Scenario) ExchangeOf(a Arm) string {
	if a.Traffic.Exchange != "" {
		return a.Traffic.Exchange
	}
	return s.Traffic.Exchange
}
