package doccheck

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

const metricsPage = "../../docs/observability.md"

// Values of labels that are the same at both processes.
func commonLabels(t *testing.T) map[string]map[string][]string {
	identities := constants(t, "identity", "", "Reason")
	scopes, limits := constants(t, "internal/admission", "Scope", ""), constants(t, "internal/admission", "Limit", "")
	return map[string]map[string][]string{
		"isthmus_admission_refused_total":         {"scope": scopes, "limit": limits},
		"isthmus_admission_shed_total":            {"scope": scopes},
		"isthmus_discovery_changes_total":         {"result": {"accepted", "refused", "held"}},
		"isthmus_discovery_problems":              {"kind": {"value", "missing", "conflict", "reference", "unsupported"}},
		"isthmus_identity_fetches_total":          {"result": {"ok", "error"}},
		"isthmus_sessions_ended_total":            {"outcome": constants(t, "hbone", "Outcome", "")},
		"isthmus_memory_resets_total":             {"reason": {"stream", "session", "relay", "other"}},
		"isthmus_memory_streams_total":            {"result": {"delayed", "refused"}},
		"isthmus_listener_suspicions_total":       {"why": {"gone", "stalled"}},
		"isthmus_streams_refused_total":           {"reason": constants(t, "hbone", "Refusal", "")},
		"isthmus_peers_refused_total":             {"reason": append(identities, "overload")},
		"isthmus_connections_without_hello_total": {"kind": constants(t, "internal/pending", "", "Probe")},
		"isthmus_federation_rejected_total":       {"reason": {"malformed", "foreign", "signature", "identity", "oversized", "full", "own", "other_node", "network_malformed", "network_unknown_network", "network_wrong_key", "network_expired", "network_too_long"}},
		"isthmus_federation_dropped_total":        {"queue": {"packets_out", "bulk_out", "unknown_peer", "inbox", "streams"}},
		"isthmus_federation_joins_total":          {"result": {"ok", "failed", "twice"}},
		"isthmus_federation_sent_bytes_total":     {"kind": {"packet", "stream", "health"}},
		"isthmus_federation_received_bytes_total": {"kind": {"packet", "stream", "health"}},
	}
}

func gatewayLabels(t *testing.T) map[string]map[string][]string {
	out := commonLabels(t)
	out["isthmus_endpoints_out"] = map[string][]string{"cause": constants(t, "gateway", "", "out")}
	out["isthmus_tunnels_closed_total"] = map[string][]string{"result": append(constants(t, "gateway", "", "result"),
		"overload", "unreachable", "pinned_gone", "no_endpoint", "unknown_service", "not_exported", "bad_authority")}
	for _, name := range []string{"age_seconds", "failing", "held", "objects"} {
		out["isthmus_kubernetes_"+name] = map[string][]string{"list": {"namespaces", "nodes", "services", "endpointslices", "pods", "serviceexports", "authorizationpolicies", "peerauthentications"}}
	}
	out["isthmus_bound_tokens_total"] = map[string][]string{"result": {"review", "keys", "malformed", "not_bound", "audience", "account", "expired", "signature", "denied", "pod", "node", "limited", "unavailable"}}
	out["isthmus_moved_connections_total"] = map[string][]string{"reason": {"reset", "silence"}}
	out["isthmus_outlier_edges_total"] = map[string][]string{"scope": {"endpoint", "hop"}, "edge": {"ejected", "readmitted"}}
	out["isthmus_inner_handshake_waits_total"] = map[string][]string{"bound": {"identity", "pod"}, "result": {"served", "timeout", "cancelled"}}
	refused := out["isthmus_peers_refused_total"]
	refused["reason"] = append(refused["reason"], "not_gateway", "not_node")
	return out
}

func nodeLabels(t *testing.T) map[string]map[string][]string {
	out := commonLabels(t)
	out["isthmus_federation_rejected_total"] = map[string][]string{"reason": {"malformed", "identity", "oversized", "full"}}
	out["isthmus_federation_unproven_total"] = map[string][]string{"reason": constants(t, "federation/healthstream", "Unproven", "")}
	for _, way := range []string{"sent", "received"} {
		out["isthmus_federation_"+way+"_bytes_total"] = map[string][]string{"kind": {"health"}}
	}
	reasons := union(constants(t, "nodeproxy", "", "reason"), []string{"identity", "own_identity"}, constants(t, "hbone/header", "Reason", ""))
	reporter := []string{"source", "destination"}
	for _, name := range []string{"opened_total", "closed_total"} {
		out["isthmus_connections_"+name] = map[string][]string{"reporter": reporter}
	}
	out["isthmus_connections_closed_total"]["result"] = union(constants(t, "nodeproxy", "", "result"), reasons)
	out["isthmus_connection_sent_bytes_total"] = map[string][]string{"reporter": reporter}
	out["isthmus_connection_received_bytes_total"] = map[string][]string{"reporter": reporter}
	out["isthmus_connect_retries_total"] = map[string][]string{"reason": reasons}
	out["isthmus_outlier_edges_total"] = map[string][]string{"scope": {"endpoint", "network_service", "gateway"}, "edge": {"ejected", "readmitted"}}
	out["isthmus_hedges_total"] = map[string][]string{"result": {"withdrawn", "accepted", "refused", "unanswered", "nobody", "budget"}}
	for _, name := range []string{"connections", "rtt_seconds", "loss_ratio", "delivery_rate_bytes", "transport", "quic_failing", "transport_changes_total", "quic_failures_total"} { // a series for each linked network at most
		out["isthmus_line_"+name] = map[string][]string{"network": {"the name of the other network"}, "transport": {"tcp", "quic"}, "congestion": {"the name of the algorithm"}}
	}
	out["isthmus_cni_verdicts_total"] = map[string][]string{"verdict": {"captured", "outside", "unknown", "failed", "stopping", "refused"}}
	out["isthmus_first_packets_total"] = map[string][]string{"verdict": {"mesh", "direct", "refused", "dropped"}}
	out["isthmus_slow_connects_total"] = map[string][]string{"told": {"yes", "no"}}
	out["isthmus_warm_choices_total"] = map[string][]string{"session": {"held", "awaited", "opened", "alone", "bulk"}}
	out["isthmus_replica_answers_total"] = map[string][]string{"answer": {"asked", "other", "unknown", "taken"}}
	out["isthmus_pool_requests_total"] = map[string][]string{"session": {"ready", "waited"}}
	out["isthmus_pool_failed_total"] = map[string][]string{"reason": {"halted", "full", "dial", "left"}}
	out["isthmus_dns_requests_total"] = map[string][]string{"result": {"found", "no_data", "no_such_name", "unknown", "passed", "unanswered", "malformed", "busy", "dropped"}}
	out["isthmus_pool_dials_total"] = map[string][]string{"result": {"ok", "error"}}
	out["isthmus_pool_repeats_total"] = map[string][]string{"reason": {"full", "refused", "gone"}}
	return out
}

// union keeps the order and drops what was there before.
func union(lists ...[]string) (out []string) {
	for _, v := range slices.Concat(lists...) {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

func TestObservabilityPageHasEveryMetric(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("west")
	m.Gateway("west", "gw-1")
	m.Pod("west", "west-1", "hello-1")
	m.Start()
	gateway := metricsRows(t, m.Process("gateway west/gw-1").Metrics, gatewayLabels(t))
	node := metricsRows(t, m.Process("node proxy west-1").Metrics, nodeLabels(t))
	page := openPage(t, metricsPage)
	page.section(t, "metrics of both", metricsTable(slices.DeleteFunc(slices.Clone(gateway), func(row string) bool { return !slices.Contains(node, row) })))
	page.section(t, "metrics of gateway", metricsTable(slices.DeleteFunc(slices.Clone(gateway), func(row string) bool { return slices.Contains(node, row) })))
	page.section(t, "metrics of nodeproxy", metricsTable(slices.DeleteFunc(slices.Clone(node), func(row string) bool { return slices.Contains(gateway, row) })))
	page.close(t)
}

var descForm = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)".*variableLabels: \{([^}]*)\}\}$`)

func metricsTable(rows []string) string {
	return "\n| metric | type | labels | unit | meaning |\n|---|---|---|---|---|\n" + strings.Join(rows, "") + "\n"
}

// metricsRows returns a row for each metric in r, also without a value, sorted. It omits the
// metrics of the Go runtime and of the process.
func metricsRows(t *testing.T, r *prometheus.Registry, values map[string]map[string][]string) []string {
	t.Helper()
	types := map[string]string{}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc)
	go func() { r.Describe(descs); close(descs) }()
	var rows []string
	for d := range descs {
		m := descForm.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		name := m[1]
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		typ := "gauge"
		if strings.HasSuffix(name, "_total") {
			typ = "counter"
		} else if strings.HasSuffix(name, "_duration_seconds") {
			typ = "histogram"
		}
		if got := types[name]; got != "" && got != typ {
			t.Errorf("%s is a %s: its name says that it is a %s", name, got, typ)
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", name, typ, labelsCell(t, name, m[3], values[name]), unit(name), cell(strings.ReplaceAll(m[2], `\"`, `"`))))
	}
	slices.Sort(rows)
	return rows
}

// labelsCell writes the labels of a metric with all values that they can have.
func labelsCell(t *testing.T, metric, labels string, values map[string][]string) string {
	t.Helper()
	var out []string
	for l := range strings.SplitSeq(labels, ",") {
		if l == "" {
			continue
		}
		if len(values[l]) == 0 {
			t.Errorf("%s: say in metrics_test.go what the values of %s can be", metric, l)
		}
		out = append(out, "`"+l+"`: "+strings.Join(values[l], ", "))
	}
	return strings.Join(out, "; ")
}

// unit follows from the name (https://prometheus.io/docs/practices/naming).
func unit(metric string) string {
	switch {
	case strings.Contains(metric, "timestamp_seconds"):
		return "Unix time, seconds"
	case strings.Contains(metric, "_seconds"):
		return "seconds"
	case strings.Contains(metric, "_bytes"):
		return "bytes"
	}
	return "count"
}
