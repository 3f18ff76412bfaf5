package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

func (c *checker) fault(i int) {
	f := c.s.Faults[i]
	known := make([]string, 0, len(kinds))
	for _, k := range kinds {
		known = append(known, string(k.Kind))
	}
	valid := c.oneOf(string(f.Kind), known, "faults", i, "kind")
	if !portName.MatchString(f.Name) {
		c.fail(f.Name, "must be 1 to 15 letters, digits and dashes", "faults", i, "name")
	}
	if slices.Contains(windowNames, f.Name) {
		c.fail(f.Name, "is the name of a phase: choose another", "faults", i, "name")
	}
	for _, o := range c.s.Faults[:i] {
		if o.Name == f.Name {
			c.fail(f.Name, "is given twice: name the faults", "faults", i, "name")
		}
		if f.overlaps(o) && f.Kind == FederationCut && o.Kind == FederationCut {
			c.fail(f.Name, fmt.Sprintf("overlaps with %s: let one cut end before the next begins", o.Name), "faults", i, "at")
		}
		if f.overlaps(o) && f.Kind != FederationCut && o.Kind != FederationCut && f.Target.Network == o.Target.Network && c.sameVictim(f, o) {
			c.fail(f.Name, fmt.Sprintf("hits what fault %s has hit at that time: let one end before the other begins, or aim at something else", o.Name), "faults", i)
		}
	}
	c.instants(i)
	if valid {
		c.aim(i, f.AimedAt())
		c.periods(i)
	}
}

func (f Fault) overlaps(o Fault) bool {
	return (o.Until == 0 || f.At < o.Until) && (f.Until == 0 || o.At < f.Until)
}

// sameVictim reports whether the two faults may meet on one process or port.
func (c *checker) sameVictim(a, b Fault) bool {
	switch ta, tb := a.AimedAt(), b.AimedAt(); {
	case ta != tb:
		return false
	case ta == AtGateway:
		return a.Target.Gateway == b.Target.Gateway
	case ta == AtNode:
		return a.Target.Node == b.Target.Node
	}
	if !a.wholePod() && !b.wholePod() && a.Target.Port != "" && b.Target.Port != "" && a.Target.Port != b.Target.Port {
		return false
	}
	if len(a.Target.Names) > 0 && len(b.Target.Names) > 0 {
		return slices.ContainsFunc(a.Target.Names, func(n string) bool { return slices.Contains(b.Target.Names, n) })
	}
	return a.Target.Pods == All || b.Target.Pods == All
}

// Limits of what a fault may be told to take.
const (
	minFlap  = 100 * time.Millisecond
	minDelay = 10 * time.Millisecond
	maxDelay = time.Minute
)

// periods checks the keys that only some kinds have.
func (c *checker) periods(i int) {
	f := c.s.Faults[i]
	for _, k := range []struct {
		key       string
		of        Kind
		v         time.Duration
		low, high time.Duration
	}{
		{"delay", Slow, f.Delay, minDelay, maxDelay}, {"down", Flap, f.Down, minFlap, maxDuration}, {"up", Flap, f.Up, minFlap, maxDuration},
	} {
		switch {
		case f.Kind == k.of:
			c.between(k.v, k.low, k.high, "faults", i, k.key)
		case k.v != 0:
			c.fail(k.v, fmt.Sprintf("%s does not take %s: only %s does", f.Kind, k.key, k.of), "faults", i, k.key)
		}
	}
}

func (c *checker) instants(i int) {
	f := c.s.Faults[i]
	if f.At < minBaseline {
		c.fail(f.At, fmt.Sprintf("must be at least %v: the drill needs a baseline without a fault", minBaseline), "faults", i, "at")
	}
	if f.Until != 0 && f.Until <= f.At {
		c.fail(f.Until, fmt.Sprintf("must be after at (%v)", f.At), "faults", i, "until")
	}
	if c.s.Duration <= 0 {
		return // that is the mistake
	}
	if f.At >= c.s.Duration {
		c.fail(f.At, fmt.Sprintf("is not before the end of the drill (duration %v)", c.s.Duration), "faults", i, "at")
	}
	if f.Until > c.s.Duration {
		c.fail(f.Until, fmt.Sprintf("is after the end of the drill (duration %v)", c.s.Duration), "faults", i, "until")
	}
}

// aim checks that the selector fits the kind of fault.
func (c *checker) aim(i int, target string) {
	t := c.s.Faults[i].Target
	given := []struct {
		key   string
		set   bool
		value any
	}{
		{"network", t.Network != "", t.Network}, {"pods", t.Pods != Count{}, t.Pods}, {"names", len(t.Names) > 0, strings.Join(t.Names, ", ")},
		{"port", t.Port != "", t.Port}, {"gateway", t.Gateway != 0, t.Gateway}, {"node", t.Node != 0, t.Node},
		{"networks", len(t.Networks) > 0, strings.Join(t.Networks, ", ")},
	}
	allowed := map[string][]string{
		AtPods: {"network", "pods", "names", "port"}, AtGateway: {"network", "gateway"},
		AtNode: {"network", "node"}, atNetworks: {"networks"},
	}[target]
	if may := targetsOf(c.s.Faults[i].Kind); len(may) > 1 && target == AtPods && t.Pods == (Count{}) && len(t.Names) == 0 {
		c.fail("", "aim it at one of: "+strings.Join(may, ", "), "faults", i, "target")
		return
	}
	for _, g := range given {
		if g.set && !slices.Contains(allowed, g.key) {
			c.fail(g.value, fmt.Sprintf("%s does not take target.%s: use %s", c.s.Faults[i].Kind, g.key, strings.Join(allowed, ", ")), "faults", i, "target", g.key)
		}
	}
	if target == atNetworks {
		for j, n := range t.Networks {
			if c.s.network(n) == nil {
				c.unknownNetwork(n, "faults", i, "target", "networks", j)
			}
		}
		if len(c.s.Networks) < 2 {
			c.fail(c.s.Faults[i].Kind, "needs at least two networks", "faults", i, "kind")
		}
		return
	}
	n := c.s.network(t.Network)
	if n == nil {
		c.unknownNetwork(t.Network, "faults", i, "target", "network")
		return
	}
	switch target {
	case AtGateway:
		c.count(t.Gateway, 1, n.Gateways, "faults", i, "target", "gateway")
	case AtNode:
		c.count(t.Node, 1, n.Nodes, "faults", i, "target", "node")
	case AtPods:
		c.aimPods(i, n)
	}
}

func (c *checker) aimPods(i int, n *Network) {
	f := c.s.Faults[i]
	t := f.Target
	if (t.Pods == Count{}) == (len(t.Names) == 0) {
		c.fail(t.Pods, "give either pods (a number, a share such as 20 %, or all) or names", "faults", i, "target", "pods")
	}
	if t.Pods.Number > n.Pods || t.Pods.Share > 0 && n.Pods == 0 {
		c.fail(t.Pods, fmt.Sprintf("network %s has only %d pods", n.Name, n.Pods), "faults", i, "target", "pods")
	}
	for j, name := range t.Names {
		if !slices.Contains(podNames(*n), name) {
			c.fail(name, fmt.Sprintf("is no pod of network %s: they are called %s-1 to %s-%d", n.Name, n.Name, n.Name, n.Pods), "faults", i, "target", "names", j)
		}
	}
	if t.Port != "" {
		if f.wholePod() {
			c.fail(t.Port, string(f.Kind)+" takes every port of a pod: leave it out", "faults", i, "target", "port")
		} else if _, ok := c.s.PortByName(t.Port); !ok {
			c.fail(t.Port, "is no port of this scenario: use the name of one", "faults", i, "target", "port")
		}
	}
}
