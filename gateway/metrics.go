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
		opened:   prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_tunnels_opened_total", Help: "Tunnels (outer streams) opened."}),
		closed:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_tunnels_closed_total", Help: "Tunnels closed, by result or isthmus-reason. A tunnel is an outer stream and carries one session of connections."}, []string{"result"}),
		connect:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_tunnel_connect_duration_seconds", Help: "Time from a client's CONNECT to its 200, for opened tunnels.", Buckets: admin.ConnectBuckets}),
		received: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_tunnel_received_bytes_total", Help: "Bytes from clients to pods."}),
		sent:     prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_tunnel_sent_bytes_total", Help: "Bytes from pods to clients."}),
		dazed:    prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_dazed_picks_total", Help: "Choices in panic mode: no candidate was healthy."}),
		moved:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_moved_connections_total", Help: "Connections with their TLS hello sent again to another pod, by reaction of the first pod."}, []string{"reason"}),
		noBudget: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_retry_budget_exhausted_total", Help: "Retries on another pod that the service's retry budget did not allow."}),
		edges:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_outlier_edges_total", Help: "Ejections and readmissions, by scope and transition (edge)."}, []string{"scope", "edge"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_peers_refused_total", Help: "Connections refused before any stream, by reason."}, []string{"reason"}),
		probed:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_connections_without_hello_total", Help: "Inbound connections without a TLS hello, by kind: closed before one (left), or with other bytes than TLS (not_tls). These are probes; they are not logged and not counted as refused peers."}, []string{"kind"}),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_sessions_ended_total", Help: "Sessions with clients closed, by outcome."}, []string{"outcome"}),
		streams:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_streams_refused_total", Help: "CONNECTs refused with REFUSED_STREAM, by reason."}, []string{"reason"}),
	}
	r.MustRegister(m.opened, m.closed, m.connect, m.received, m.sent, m.dazed, m.moved, m.noBudget, m.edges, m.refused, m.probed, m.sessions, m.streams)
	return m
}
