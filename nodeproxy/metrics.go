package nodeproxy

import "github.com/prometheus/client_golang/prometheus"

// Metrics of one node proxy. Labels are closed sets: reporter is source or
// destination, result and reason come from the closed lists of the access log.
type Metrics struct {
	opened, closed, sent, received *prometheus.CounterVec
	retries, edges, refused        *prometheus.CounterVec
	sessions, streams, warm        *prometheus.CounterVec
	budget, dazed, indeterminate   prometheus.Counter
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
	return &Metrics{
		opened:        vec("istio_tcp_connections_opened_total", "Connections that were started.", "reporter"),
		closed:        vec("istio_tcp_connections_closed_total", "Connections that ended, by result.", "reporter", "result"),
		sent:          vec("istio_tcp_sent_bytes_total", "Bytes into tunnels.", "reporter"),
		received:      vec("istio_tcp_received_bytes_total", "Bytes out of tunnels.", "reporter"),
		retries:       vec("isthmus_connect_retries_total", "Connects that were repeated elsewhere, by the reason of the failure.", "reason"),
		edges:         vec("isthmus_outlier_edges_total", "Ejections and readmissions, by scope and edge.", "scope", "edge"),
		refused:       vec("isthmus_peers_refused_total", "Inbound connections refused before any stream, by reason (handshake, identity, own_identity, overload).", "reason"),
		sessions:      vec("isthmus_sessions_ended_total", "Inbound sessions that ended, by outcome (orderly, goaway, protocol_error, abuse, settings_timeout, ping_timeout, certificate_expired, lost).", "outcome"),
		streams:       vec("isthmus_streams_refused_total", "CONNECTs refused with REFUSED_STREAM, by reason (draining, streams, handlers, rate).", "reason"),
		warm:          vec("isthmus_warm_choices_total", "Attempts to reach a pod of another network, by the session they went on: held (by a warm set: one round trip), awaited (another connection was opening it), opened (to be held), alone (for this connection).", "session"),
		budget:        one("isthmus_retry_budget_exhausted_total", "Connections that failed because the retry budget of their identity and service was spent."),
		indeterminate: one("isthmus_indeterminate_connects_total", "Connections given up because the far side vanished after it may have got the application's first bytes."),
		dazed:         one("isthmus_dazed_picks_total", "Choices made among places none of which was healthy."),
	}
}
