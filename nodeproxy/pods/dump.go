package pods

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/mesh"
)

// Belief is how the capture of one local workload stands.
type Belief struct {
	Workload string    `json:"workload"`        // workload UID
	Captured bool      `json:"captured"`        // it is captured: sockets and rules are in its network namespace
	Names    bool      `json:"names"`           // the node proxy answers its DNS queries
	Since    time.Time `json:"since"`           // time of capture, or of the first failure
	Error    string    `json:"error,omitempty"` // why it is not captured, or not with the latest rules
	Again    time.Time `json:"again,omitzero"`  // when the next attempt is due
}

// Dump lists all, those that are not captured first.
func (c *Set) Dump() []Belief {
	out := []Belief{}
	if c == nil {
		return out
	}
	c.mu.Lock()
	now := time.Now()
	for uid, h := range c.held {
		b := Belief{Workload: uid, Captured: true, Names: h.names != nil, Since: h.since}
		if l := c.failing[uid]; l != nil {
			b.Error, b.Again = l.err.Error(), l.again
		}
		if why := c.yieldedLong(uid, now); why != "" {
			b.Error = why
		}
		out = append(out, b)
	}
	for uid, l := range c.failing {
		if c.held[uid] == nil {
			out = append(out, Belief{Workload: uid, Since: l.since, Error: cmp.Or(c.yieldedLong(uid, now), l.err.Error()), Again: l.again})
		}
	}
	c.mu.Unlock()
	slices.SortFunc(out, func(a, b Belief) int {
		switch {
		case (a.Error == "") != (b.Error == ""):
			if a.Error != "" {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Workload, b.Workload)
	})
	return out
}

// Count is how many are captured, and in how many of these names are not answered.
func (c *Set) Count() (captured, nameless int) {
	for _, b := range c.Dump() {
		if b.Captured {
			captured++
			if !b.Names {
				nameless++
			}
		}
	}
	return captured, nameless
}

// Problems are those that an operator can do something about; nameOf is how people call a workload.
func (c *Set) Problems(nameOf func(uid string) string) (list []string) {
	if c != nil {
		here, states := c.p.Locals(), c.Dump()
		for i, n := range c.cfg.Namespaces {
			if !slices.ContainsFunc(here, func(w *mesh.Workload) bool { return w.UID == n.Workload }) {
				list = append(list, fmt.Sprintf("capture.namespaces[%d].workload: discovery has no workload %q on node %s of network %s: name one by its uid there, or remove the entry", i, n.Workload, c.cfg.Node, c.cfg.Network))
			}
			if n.ResolvConf != "" && slices.ContainsFunc(states, func(b Belief) bool { return b.Workload == n.Workload && b.Captured && !b.Names }) {
				list = append(list, fmt.Sprintf("capture.namespaces[%d].resolvConf: %s has no nameserver that is an address outside of the pod, so that names are not answered in pod %s: list one there, and restart this process", i, n.ResolvConf, nameOf(n.Workload)))
			}
		}
	}
	if c != nil && c.cfg.All() {
		if err := c.node.lack(); err != nil {
			list = append(list, fmt.Sprintf("%s: %v: %s", nodeUnknown, err, nodeRemedy))
		}
	}
	for _, h := range c.List() {
		c.mu.Lock()
		policies := []error{h.unexempt, h.unjudged}
		c.mu.Unlock()
		for _, err := range policies {
			if err != nil {
				list = append(list, fmt.Sprintf("pod %s: %v", nameOf(h.uid), err))
			}
		}
		for _, why := range h.server.Problems(time.Now()) {
			list = append(list, "pod "+nameOf(h.uid)+" "+why)
		}
	}
	if c != nil {
		slow := c.works.problems(time.Now())
		for _, uid := range slices.Sorted(maps.Keys(slow)) {
			list = append(list, "pod "+nameOf(uid)+" "+slow[uid])
		}
	}
	return append(list, c.Lacking(nameOf)...)
}

const (
	nodeUnknown = "connections of the node's own processes are not recognized: policies apply to them, and may refuse the kubelet's probes"
	nodeRemedy  = "give this process the node's proc file system (capture.proc) and the capabilities SYS_PTRACE and SYS_ADMIN"
)

// nodeUnknown says once that there was an error when the node's sockets were asked.
func (c *Set) nodeUnknown(err error) {
	if err != nil && c.node.first() {
		c.p.Log.Error().Err(err).Msg(nodeUnknown + ": " + nodeRemedy)
	}
}

// Lacking is why pods of this node are not captured.
func (c *Set) Lacking(nameOf func(uid string) string) (list []string) {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	unfound := c.unfound
	c.mu.Unlock()
	if unfound != "" {
		list = append(list, "pods are not found: "+unfound)
	}
	for _, b := range c.Dump() {
		if b.Error != "" {
			list = append(list, fmt.Sprintf("pod %s is not captured: %s", nameOf(b.Workload), b.Error))
		}
	}
	return list
}

// Register registers the metrics, which are there where nobody is captured too.
func (c *Set) Register(r prometheus.Registerer) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_captured_workloads", Help: "Local pods captured in their network namespaces."}, func() float64 {
		return float64(len(c.List()))
	}), prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_capture_failures", Help: "Local pods that cannot be captured, or not with the latest rules. Pods not found yet do not count."}, func() float64 {
		if c == nil {
			return 0
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(len(c.failing))
	}))
	counted := newVerdicts(r)
	if c != nil {
		c.verdicts = counted
	}
}
