package scenario

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
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
	doc  *strictyaml.Doc
	errs []*strictyaml.Error
}

// validate reports every field that cannot be, with its place in doc.
func (s *Scenario) validate(doc *strictyaml.Doc) []*strictyaml.Error {
	c := &checker{s: s, doc: doc}
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
	return c.errs
}

// fail notes one mistake: file:line: field: value: message with remedy. A value
// that the file does not give is called missing.
func (c *checker) fail(value any, message string, path ...any) {
	what := show(value)
	if v := reflect.ValueOf(value); !c.doc.Has(path...) && v.IsZero() {
		what = "is missing"
	}
	c.errs = append(c.errs, &strictyaml.Error{File: c.doc.Name(), Line: c.doc.Line(path...), Field: dotted(path), Message: what + ": " + message})
}

// show writes a value as the file does.
func show(value any) string {
	if v := reflect.ValueOf(value); v.Kind() == reflect.String {
		return strconv.Quote(v.String())
	}
	return fmt.Sprint(value)
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
		c.fail(0, "no network has pods: give at least one network pods: 1", "networks")
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
			c.portNumbers(p, i, j)
			c.unique(numbers, fmt.Sprintf("port %d", p.Port), "services", i, "ports", j, "port")
			c.unique(numbers, fmt.Sprintf("target port %d", p.Target), "services", i, "ports", j, "targetPort")
			for _, o := range c.s.Ports() {
				if o.Name != p.Name && o.Target == p.Port && o.Port != p.Port {
					c.fail(p.Port, fmt.Sprintf("is the target port of %s: choose another, so that logs tell the two apart", o.Name), "services", i, "ports", j, "port")
				}
			}
		}
	}
}

var portName = regexp.MustCompile(`^[A-Za-z0-9-]{1,15}$`)

// portNumbers checks a service port and its target port. Pods listen without
// privileges, so the target may not be below 1024; the service port may.
func (c *checker) portNumbers(p Port, i, j int) {
	const own = "is one of the mesh's own ports (15001, 15006, 15008, 15080): choose another, for example 8080"
	field := func(key string) []any { return []any{"services", i, "ports", j, key} }
	switch {
	case p.Port == 0:
		c.fail(p.Port, "must be 1 to 65535, for example 80", field("port")...)
		return
	case mesh.ReservedPort(p.Port):
		c.fail(p.Port, own, field("port")...)
	}
	switch {
	case p.Target < 1024 && p.Target == p.Port:
		c.fail(p.Port, "is below 1024, where pods do not listen without privileges: give it a targetPort, for example 8080", field("port")...)
	case p.Target < 1024:
		c.fail(p.Target, "must be 1024 to 65535: pods listen without privileges; for example 8080", field("targetPort")...)
	case p.Target != p.Port && mesh.ReservedPort(p.Target):
		c.fail(p.Target, own, field("targetPort")...)
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
	if len(c.s.Networks) == 0 {
		return // that is the mistake
	}
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
	c.share(t.Hold.Fraction, "traffic", "hold", "fraction")
	c.share(t.Abort, "traffic", "abort")
	c.between(t.Hold.For, 10*time.Millisecond, maxDuration, "traffic", "hold", "for")
	c.between(t.Hold.Every, 10*time.Millisecond, maxDuration, "traffic", "hold", "every")
	c.surge()
}

func (c *checker) share(v Share, path ...any) {
	if !(v >= 0 && v <= 1) {
		c.fail(v, "must be a share between 0 and 1, or 0 % and 100 %", path...)
	}
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
		if a.Lines.Transport != "" {
			c.oneOf(a.Lines.Transport, []string{"tcp", "quic", "auto"}, "arms", i, "lines", "transport")
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
		err = e.Check(c.s)
	}
	if err != nil {
		c.fail(a.Metric, err.Error(), "assertions", i, "metric")
	}
}
