package nodeproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// Metrics are the metrics of one node proxy. Labels are closed sets: reporter is source or
// destination; result and reason are those of the access log.
type Metrics struct {
	opened, closed, sent, received  *prometheus.CounterVec
	retries, edges, refused         *prometheus.CounterVec
	sessions, streams, warm, probed *prometheus.CounterVec
	replicas, hedges, slow, decided *prometheus.CounterVec
	budget, dazed, indeterminate    prometheus.Counter
	connect                         prometheus.Histogram
}

// NewMetrics registers the node proxy's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(c)
		return c
	}
	one := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		r.MustRegister(c)
		return c
	}
	connect := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_connect_duration_seconds", Help: "Time from a local application's connect until the far application accepted, for established connections.", Buckets: admin.ConnectBuckets})
	r.MustRegister(connect)
	return &Metrics{
		connect:       connect,
		opened:        vec("isthmus_connections_opened_total", "Connections started.", "reporter"),
		closed:        vec("isthmus_connections_closed_total", "Connections closed, by result.", "reporter", "result"),
		sent:          vec("isthmus_connection_sent_bytes_total", "Bytes sent into tunnels.", "reporter"),
		received:      vec("isthmus_connection_received_bytes_total", "Bytes received from tunnels.", "reporter"),
		retries:       vec("isthmus_connect_retries_total", "Connects retried on another candidate, by the reason of the failure.", "reason"),
		edges:         vec("isthmus_outlier_edges_total", "Ejections and readmissions, by scope and transition (edge).", "scope", "edge"),
		refused:       vec("isthmus_peers_refused_total", "Inbound connections refused before any stream, by reason.", "reason"),
		probed:        vec("isthmus_connections_without_hello_total", "Inbound connections without a TLS hello, by kind: closed before one (left), or with other bytes than TLS (not_tls). These are probes; they are not logged and not counted as refused peers.", "kind"),
		sessions:      vec("isthmus_sessions_ended_total", "Sessions with clients closed, by outcome.", "outcome"),
		streams:       vec("isthmus_streams_refused_total", "CONNECTs refused with REFUSED_STREAM, by reason.", "reason"),
		warm:          vec("isthmus_warm_choices_total", "Attempts to reach a pod of another network, by the session used: held (in the preconnect pool: one round trip), awaited (another connection was opening it), opened (for the preconnect pool), alone (for this connection only), bulk (as alone, because recent connections to the destination carried bulk).", "session"),
		replicas:      vec("isthmus_replica_answers_total", "Dials of gateways that share an address, by the replica that answered: asked (the wanted one), other (another one; the session belongs to it), unknown (not yet in discovery; dialed again), taken (not in discovery, and only such replicas answer; used in place of the wanted one).", "answer"),
		hedges:        vec("isthmus_hedges_total", "Attempts with a slow accept reported by the far side, by result: withdrawn (the connection went to another endpoint), accepted (the application accepted before the withdrawal), refused (the far side refused before the withdrawal), unanswered (no answer to the withdrawal), nobody (no healthy endpoint elsewhere; the attempt went on), budget (retry budget spent; the attempt went on).", "result"),
		slow:          vec("isthmus_slow_connects_total", "Connects to local applications that took longer than 100 ms, or 10 ms while the accept queue was full, by whether this was reported to the client (no: the client did not request it, as stock ones do not).", "told"),
		decided:       vec("isthmus_first_packets_total", "First packets of captured pods' connections to destinations without a decision, by the decision: mesh (redirected to this node proxy), direct (left to the kernel), refused (reset), dropped (none, because the queue was full or the rules changed; the kernel retransmits the packet).", "verdict"),
		budget:        one("isthmus_retry_budget_exhausted_total", "Connections that failed because the retry budget of their identity and service was spent."),
		indeterminate: one("isthmus_indeterminate_connects_total", "Connections failed because the far side was lost after it may have received the application's first bytes."),
		dazed:         one("isthmus_dazed_picks_total", "Choices in panic mode: no candidate was healthy."),
	}
}
