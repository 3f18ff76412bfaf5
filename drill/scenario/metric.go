package scenario

import (
	"maps"
	"slices"
)

// windowNames are the phases that every drill has.
var windowNames = []string{"run", "baseline", "fault", "surge", "healed"}

// quantileNames are what the selector q may be; max when it is left out.
var quantileNames = []string{"p50", "median", "p90", "p99", "max"}

// What the selector role may be.
const (
	RoleGateway   = "gateway"
	RoleNodeProxy = "nodeproxy"
)

// Metric is one entry of the closed list that assertions may use.
type Metric struct {
	Name  string
	Doc   string
	Takes []string // selectors
	Needs []string // those of them that must be given
}

// metrics is the closed list; examples/drills/README.md shows it.
var metrics = map[string]Metric{}

func init() {
	where := []string{"phase", "port", "after"}
	shares := []string{"network", "to", "port", "phase"}
	for _, m := range []Metric{
		{Name: "attempts", Doc: "new connections that clients opened", Takes: where},
		{Name: "failed", Doc: "new connections whose first exchange did not succeed", Takes: where},
		{Name: "failed_fraction", Doc: "failed, as a share of attempts", Takes: where},
		{Name: "aborted", Doc: "connections that clients broke off on purpose (`traffic.abort`); they are no failures", Takes: where},
		{Name: "refused_by_overload", Doc: "connections of the surge that the client's node proxy refused because of overload (`traffic.surge`), within 2 s; they are no failures, those that time out are", Takes: where},
		{Name: "answered_per_second", Doc: "connections that succeeded, per second of the phase", Takes: where},
		{Name: "cut", Doc: "held connections, already answered, that broke"},
		{Name: "cut_unexplained", Doc: "those of them that no fault's victim explains"},
		{Name: "latency_ms", Doc: "milliseconds from intended start to first answer, of connections that succeeded", Takes: []string{"q", "phase", "port", "after"}},
		{Name: "to_sick", Doc: "client connections that ended at a sick pod:port later than `after` (1s) into its fault", Takes: []string{"after", "fault"}},
		{Name: "last_to_sick_ms", Doc: "milliseconds from a fault's effect to the start of the last client connection that ended at a sick pod:port", Takes: []string{"fault"}},
		{Name: "collateral_ejections", Doc: "how often a healthy endpoint:port was left out because of another one's fault"},
		{Name: "gateway_ejections", Doc: "how often a gateway that was alive was left out"},
		{Name: "ejections", Doc: "how often a victim of the fault was left out, by any process, while it lasted", Takes: []string{"fault"}, Needs: []string{"fault"}},
		{Name: "share", Doc: "answers from the network, as a share of all", Takes: []string{"network", "port", "phase"}, Needs: []string{"network"}},
		{Name: "ratio", Doc: "answers from `network` for each one from `to`", Takes: shares, Needs: []string{"network", "to"}},
		{Name: "capacity_error", Doc: "how far ratio is from that of the healthy capacities, relative: 0.1 is 10 %", Takes: shares, Needs: []string{"network", "to"}},
		{Name: "victims_share", Doc: "answers from the fault's pods on the port, relative to their share of their network's pods: 1 is their full share", Takes: []string{"fault", "port", "phase"}, Needs: []string{"fault", "port"}},
		{Name: "exclude_ms", Doc: "milliseconds from the first refused client connection, or its witness seeing the fault before that (for a pod that hangs: from the fault's effect), to each gateway of the pod's network leaving the pod:port out", Takes: []string{"q", "fault"}},
		{Name: "known_ms", Doc: "milliseconds from the first refused client connection, or its witness seeing the fault before that (for a pod that hangs: from the fault's effect), to each client node proxy on another network knowing", Takes: []string{"q", "fault"}},
		{Name: "known_healed_ms", Doc: "milliseconds from a pod:port's healing to each client node proxy on another network that knew it to be sick knowing that it is well", Takes: []string{"q", "fault"}},
		{Name: "control_bytes_per_second", Doc: "bytes per second of gossip and health streams, sent and received, of each gateway (`role=gateway`) or node proxy (`role=nodeproxy`)", Takes: []string{"role", "q"}, Needs: []string{"role"}},
		{Name: "heal_ms", Doc: "milliseconds from a pod:port's healing to its next answer to a client", Takes: []string{"q", "fault"}},
	} {
		metrics[m.Name] = m
	}
}

// MetricNames returns the closed list, sorted.
func MetricNames() []string { return slices.Sorted(maps.Keys(metrics)) }

// Metrics returns the closed list with its documentation, sorted by name.
func Metrics() []Metric {
	var out []Metric
	for _, n := range MetricNames() {
		out = append(out, metrics[n])
	}
	return out
}
