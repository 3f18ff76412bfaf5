package drill

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Limits of a scenario: all of it runs on one machine.
const (
	maxNetworks = 16
	maxGateways = 8
	maxNodes    = 30
	maxPods     = 200
	maxRate     = 5000
	maxDuration = 30 * time.Minute
	minBaseline = time.Second
)

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// checker collects mistakes with their positions.
type checker struct {
	s    *Scenario
	pos  func(path ...any) string
	errs []error
}

// validate reports every field that cannot be, with its place from pos.
func (s *Scenario) validate(pos func(path ...any) string) error {
	c := &checker{s: s, pos: pos}
	c.label(s.Name, "name")
	c.between(s.Duration, 2*time.Second, maxDuration, "duration")
	c.between(s.Settle, 0, time.Minute, "settle")
	c.networks()
	c.services()
	c.clients()
	c.traffic()
	for i := range s.Faults {
		c.fault(i)
	}
	c.arms()
	for i := range s.Assertions {
		c.assertion(i)
	}
	return errors.Join(c.errs...)
}

// fail notes one mistake: pos: field: value: message with remedy.
func (c *checker) fail(value any, message string, path ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s: %v: %s", c.pos(path...), dotted(path), show(value), message))
}

func show(v any) any {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return v
}

func dotted(path []any) string {
	var b strings.Builder
	for _, p := range path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, p)
		}
	}
	return b.String()
}

func (c *checker) label(v string, path ...any) {
	if !label.MatchString(v) {
		c.fail(v, "must be 1 to 32 lower-case letters, digits and dashes, for example west", path...)
	}
}

func (c *checker) between(v, low, high time.Duration, path ...any) {
	if v < low || v > high {
		c.fail(v, fmt.Sprintf("must be between %v and %v", low, high), path...)
	}
}

func (c *checker) count(v, low, high int, path ...any) {
	if v < low || v > high {
		c.fail(v, fmt.Sprintf("must be between %d and %d", low, high), path...)
	}
}

func (c *checker) oneOf(v string, known []string, path ...any) bool {
	if slices.Contains(known, v) {
		return true
	}
	c.fail(v, "use one of: "+strings.Join(known, ", "), path...)
	return false
}

func (c *checker) unique(seen map[string]bool, v string, path ...any) {
	if seen[v] {
		c.fail(v, "is given twice: every one needs a name of its own", path...)
	}
	seen[v] = true
}

func (c *checker) networks() {
	if n := len(c.s.Networks); n == 0 || n > maxNetworks {
		c.fail(n, fmt.Sprintf("give 1 to %d networks", maxNetworks), "networks")
	}
	seen, pods := map[string]bool{}, 0
	for i, n := range c.s.Networks {
		c.label(n.Name, "networks", i, "name")
		c.unique(seen, n.Name, "networks", i, "name")
		c.count(n.Gateways, 1, maxGateways, "networks", i, "gateways")
		c.count(n.Nodes, 1, maxNodes, "networks", i, "nodes")
		c.count(n.Pods, 0, maxPods, "networks", i, "pods")
		c.count(int(n.Capacity), 1, 65535, "networks", i, "capacity")
		pods += n.Pods
	}
	if pods == 0 && len(c.s.Networks) > 0 {
		c.fail(0, "no network has pods: give at least one network pods: 1", "networks", 0, "pods")
	}
}

func (c *checker) services() {
	if len(c.s.Services) == 0 {
		c.fail(0, "give at least one service with one port", "services")
	}
	services, names, numbers := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for i, v := range c.s.Services {
		c.label(v.Name, "services", i, "name")
		c.unique(services, v.Name, "services", i, "name")
		if len(v.Ports) == 0 {
			c.fail(0, "a service needs at least one port", "services", i, "ports")
		}
		for j, p := range v.Ports {
			if !portName.MatchString(p.Name) {
				c.fail(p.Name, "must be 1 to 15 letters, digits and dashes, for example A", "services", i, "ports", j, "name")
			}
			c.unique(names, p.Name, "services", i, "ports", j, "name")
			c.portNumber(p.Port, "services", i, "ports", j, "port")
			c.portNumber(p.Target, "services", i, "ports", j, "targetPort")
			c.unique(numbers, fmt.Sprintf("port %d", p.Port), "services", i, "ports", j, "port")
			c.unique(numbers, fmt.Sprintf("target port %d", p.Target), "services", i, "ports", j, "targetPort")
		}
	}
}

var portName = regexp.MustCompile(`^[A-Za-z0-9-]{1,15}$`)

func (c *checker) portNumber(p uint16, path ...any) {
	if p < 1024 || mesh.ReservedPort(p) {
		c.fail(p, "must be 1024 to 65535 and none of the mesh's own 15001, 15006, 15008 and 15080, for example 8080", path...)
	}
}

func (c *checker) clients() {
	if len(c.s.Clients) == 0 {
		c.fail(0, "give at least one group of clients, for example {network: east}", "clients")
	}
	seen := map[string]bool{}
	for i, g := range c.s.Clients {
		n := c.s.network(g.Network)
		if n == nil {
			c.unknownNetwork(g.Network, "clients", i, "network")
			continue
		}
		c.unique(seen, g.Network, "clients", i, "network")
		c.count(g.Nodes, 1, n.Nodes, "clients", i, "nodes")
	}
}

func (c *checker) unknownNetwork(name string, path ...any) {
	names := make([]string, 0, len(c.s.Networks))
	for _, n := range c.s.Networks {
		names = append(names, n.Name)
	}
	c.fail(name, "is no network of this scenario: use one of "+strings.Join(names, ", "), path...)
}

func (c *checker) traffic() {
	t := c.s.Traffic
	if !(t.Rate > 0 && t.Rate <= maxRate) {
		c.fail(t.Rate, fmt.Sprintf("must be above 0 and at most %d connections per second", maxRate), "traffic", "rate")
	}
	c.oneOf(t.Arrivals, []string{"poisson", "uniform"}, "traffic", "arrivals")
	c.oneOf(t.Exchange, []string{"request", "banner"}, "traffic", "exchange")
	c.between(t.Timeout, 10*time.Millisecond, time.Minute, "traffic", "timeout")
	if !(t.Hold.Fraction >= 0 && t.Hold.Fraction <= 1) {
		c.fail(t.Hold.Fraction, "must be a share between 0 and 1", "traffic", "hold", "fraction")
	}
	c.between(t.Hold.For, 10*time.Millisecond, maxDuration, "traffic", "hold", "for")
	c.between(t.Hold.Every, 10*time.Millisecond, maxDuration, "traffic", "hold", "every")
}

func (c *checker) arms() {
	if len(c.s.Arms) == 0 {
		c.fail(0, "give at least one arm, for example {name: isthmus}", "arms")
	}
	seen := map[string]bool{}
	for i, a := range c.s.Arms {
		c.label(a.Name, "arms", i, "name")
		c.unique(seen, a.Name, "arms", i, "name")
		c.oneOf(a.OutlierDetection.Scope, []string{"endpoint", "networkService", "none"}, "arms", i, "outlierDetection", "scope")
		if a.OutlierDetection.Mode != "" {
			c.oneOf(a.OutlierDetection.Mode, []string{"hybrid", "circuitBreaker", "ewma", "off"}, "arms", i, "outlierDetection", "mode")
		}
		if n := a.Retry.Attempts; n != nil {
			c.count(*n, 0, 100, "arms", i, "retry", "attempts")
		}
		if a.Traffic.Exchange != "" {
			c.oneOf(a.Traffic.Exchange, []string{"request", "banner"}, "arms", i, "traffic", "exchange")
		}
	}
}

func (c *checker) assertion(i int) {
	a := c.s.Assertions[i]
	if a.Arm != "" && !slices.ContainsFunc(c.s.Arms, func(m Arm) bool { return m.Name == a.Arm }) {
		c.fail(a.Arm, "is no arm of this scenario: use the name of one, or leave it out for every arm", "assertions", i, "arm")
	}
	if _, err := ParseBound(a.Bound); err != nil {
		c.fail(a.Bound, err.Error(), "assertions", i, "bound")
	}
	e, err := ParseExpr(a.Metric)
	if err == nil {
		err = e.check(c.s)
	}
	if err != nil {
		c.fail(a.Metric, err.Error(), "assertions", i, "metric")
	}
}
