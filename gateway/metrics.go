package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// Metrics of one gateway. Labels are closed sets.
type Metrics struct {
	opened   prometheus.Counter
	closed   *prometheus.CounterVec
	connect  prometheus.Histogram
	received prometheus.Counter
	sent     prometheus.Counter
	dazed    prometheus.Counter
	moved    *prometheus.CounterVec
	noBudget prometheus.Counter
	edges    *prometheus.CounterVec
	refused  *prometheus.CounterVec
	probed   *prometheus.CounterVec
	sessions *prometheus.CounterVec
	streams  *prometheus.CounterVec
}

// NewMetrics registers the gateway's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		opened:   prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_tunnels_opened_total", Help: "Tunnels (outer streams) that were opened."}),
		closed:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_tunnels_closed_total", Help: "Tunnels (outer streams, each of which carries a session of connections) that ended, by result (ended, server_ended, cancelled, no_hello, no_handshake, client_reset, server_reset, tunnel_lost, half_closed, shed, reassigned, stopped, or an isthmus-reason)."}, []string{"result"}),
		connect:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_tunnel_connect_duration_seconds", Help: "Time from a client's CONNECT to its 200, of tunnels that were opened.", Buckets: admin.ConnectBuckets}),
		received: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_tunnel_received_bytes_total", Help: "Bytes from clients to pods."}),
		sent:     prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_tunnel_sent_bytes_total", Help: "Bytes from pods to clients."}),
		dazed:    prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_dazed_picks_total", Help: "Choices made among pods none of which was healthy."}),
		moved:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_moved_connections_total", Help: "Connections whose TLS hello was given to another pod, by what the first one did (reset, silence)."}, []string{"reason"}),
		noBudget: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_retry_budget_exhausted_total", Help: "Repeats at another pod that the service's retry budget did not allow."}),
		edges:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_outlier_edges_total", Help: "Ejections and readmissions, by scope (endpoint, hop) and edge."}, []string{"scope", "edge"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_peers_refused_total", Help: "Connections refused before any stream, by reason (handshake, identity, own_identity, not_gateway, not_node, overload)."}, []string{"reason"}),
		probed:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_connections_without_hello_total", Help: "Connections that ended (left) before a TLS hello, or said something else than TLS (not_tls): probes of load balancers, which are no refused peers and no lines of the log."}, []string{"kind"}),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_sessions_ended_total", Help: "Outer sessions that ended, by outcome (orderly, goaway, protocol_error, abuse, settings_timeout, ping_timeout, certificate_expired, untrusted, lost)."}, []string{"outcome"}),
		streams:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_streams_refused_total", Help: "CONNECTs refused with REFUSED_STREAM, by reason (draining, streams, handlers, rate)."}, []string{"reason"}),
	}
	r.MustRegister(m.opened, m.closed, m.connect, m.received, m.sent, m.dazed, m.moved, m.noBudget, m.edges, m.refused, m.probed, m.sessions, m.streams)
	return m
}
