package nodeproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/admin"
)

// Metrics of one node proxy. Labels are closed sets: reporter is source or
// destination, result and reason come from the closed lists of the access log.
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
	connect := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_connect_duration_seconds", Help: "Time from an application's connect until the far application had accepted, of local applications' connections that were established.", Buckets: admin.ConnectBuckets})
	r.MustRegister(connect)
	return &Metrics{
		connect:       connect,
		opened:        vec("isthmus_connections_opened_total", "Connections that were started.", "reporter"),
		closed:        vec("isthmus_connections_closed_total", "Connections that ended, by result.", "reporter", "result"),
		sent:          vec("isthmus_connection_sent_bytes_total", "Bytes into tunnels.", "reporter"),
		received:      vec("isthmus_connection_received_bytes_total", "Bytes out of tunnels.", "reporter"),
		retries:       vec("isthmus_connect_retries_total", "Connects that were repeated elsewhere, by the reason of the failure.", "reason"),
		edges:         vec("isthmus_outlier_edges_total", "Ejections and readmissions, by scope and edge.", "scope", "edge"),
		refused:       vec("isthmus_peers_refused_total", "Inbound connections refused before any stream, by reason (handshake, identity, own_identity, overload).", "reason"),
		probed:        vec("isthmus_connections_without_hello_total", "Inbound connections that ended (left) before a TLS hello, or said something else than TLS (not_tls): probes, which are no refused peers and no lines of the log.", "kind"),
		sessions:      vec("isthmus_sessions_ended_total", "Inbound sessions that ended, by outcome (orderly, goaway, protocol_error, abuse, settings_timeout, ping_timeout, certificate_expired, untrusted, lost).", "outcome"),
		streams:       vec("isthmus_streams_refused_total", "CONNECTs refused with REFUSED_STREAM, by reason (draining, streams, handlers, rate).", "reason"),
		warm:          vec("isthmus_warm_choices_total", "Attempts to reach a pod of another network, by the session they went on: held (by a warm set: one round trip), awaited (another connection was opening it), opened (to be held), alone (for this connection), bulk (likewise, since connections to its destination lately carried bulk).", "session"),
		replicas:      vec("isthmus_replica_answers_total", "Dials of gateways that share an address with others, by who has answered: asked (the one that was wanted), other (another one: the session is its own), unknown (one that discovery does not list yet: dialled again), taken (likewise, and nobody else answers: it stands for the one that was wanted).", "answer"),
		hedges:        vec("isthmus_hedges_total", "Attempts of whose application the far side said that it takes long to accept, by what came of it: withdrawn (it was, and the connection went elsewhere), accepted (it was to be withdrawn, and the application was faster), refused (and the far side refused first), unanswered (and no answer came), nobody (there was nobody healthy elsewhere: it was waited for), budget (the retry budget was spent: it was waited for).", "result"),
		slow:          vec("isthmus_slow_connects_total", "Connects to local applications that took longer than 100 ms, or 10 ms while the accept queue was seen to be full, by whether the client was told (yes, or no: it has not asked for it, as a stock one).", "told"),
		decided:       vec("isthmus_first_packets_total", "First packets of captured pods' connections to destinations without a decision, by what was decided: mesh (the connection comes to this node proxy), direct (it is left to the kernel), refused (it is reset), dropped (nothing, for lack of room or because the rules were changed: the kernel sends the packet again).", "verdict"),
		budget:        one("isthmus_retry_budget_exhausted_total", "Connections that failed because the retry budget of their identity and service was spent."),
		indeterminate: one("isthmus_indeterminate_connects_total", "Connections given up because the far side vanished after it may have got the application's first bytes."),
		dazed:         one("isthmus_dazed_picks_total", "Choices made among places none of which was healthy."),
	}
}
