package peer

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what this package decided. Create it with [NewMetrics]; one
// may be shared by gossip and health streams.
type Metrics struct {
	// Rejected messages and connections by reason: malformed, foreign,
	// signature, identity, oversized, full, other_node.
	Rejected *prometheus.CounterVec
	// Unproven records and certificates of other networks' gateways, as a gateway of
	// the own network has told them, by reason; see healthstream.Unproven.
	Unproven *prometheus.CounterVec
	// Dropped messages by the queue that was full.
	Dropped *prometheus.CounterVec
	// Edges published by this process.
	Edges prometheus.Counter
	// Bytes sent to other processes, by kind: packet, stream, health (the one kind of a node proxy).
	Bytes *prometheus.CounterVec
	// Received likewise.
	Received *prometheus.CounterVec
	// Members of the federation that are alive, this one included.
	Members prometheus.Gauge
	// Attached streams: node proxies at a gateway, gateways at a node proxy.
	Attached prometheus.Gauge
	// Unpublished records of this process: invalid ones, and those beyond its limits.
	Unpublished prometheus.Gauge
	// Joins of lost or new peers by result: ok, failed.
	Joins *prometheus.CounterVec
}

// NewMetrics registers the metrics of a gateway with reg; a nil reg leaves them
// unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := newMetrics()
	if reg != nil {
		reg.MustRegister(m.Rejected, m.Dropped, m.Edges, m.Bytes, m.Received, m.Members, m.Attached, m.Unpublished, m.Joins)
	}
	return m
}

// NewNodeMetrics registers with reg those of health streams, all that a node proxy has.
func NewNodeMetrics(reg prometheus.Registerer) *Metrics {
	m := newMetrics()
	reg.MustRegister(m.Rejected, m.Unproven, m.Bytes, m.Received, m.Attached)
	return m
}

func newMetrics() *Metrics {
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "isthmus", Subsystem: "federation", Name: name, Help: help,
		}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "isthmus", Subsystem: "federation", Name: name, Help: help,
		})
	}
	return &Metrics{
		Rejected: vec("rejected_total", "Messages and connections rejected, by reason.", "reason"),
		Unproven: vec("unproven_total", "Records and certificates of other networks' gateways, received from a gateway of this network, that the keys in federation.networks do not prove, by reason.", "reason"),
		Dropped:  vec("dropped_total", "Messages dropped because a queue was full, by queue.", "queue"),
		Edges: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "isthmus", Subsystem: "federation", Name: "published_total", Help: "Records published by this process.",
		}),
		Bytes:       vec("sent_bytes_total", "Bytes sent, by kind of connection. Between gateways: packet (urgent messages) and stream (large messages and member exchange). Between gateways and node proxies: health.", "kind"),
		Received:    vec("received_bytes_total", "Bytes received, by kind of connection.", "kind"),
		Members:     gauge("members", "Gateways that are alive in memberlist and trusted, including this one."),
		Attached:    gauge("attached_streams", "Open health streams."),
		Unpublished: gauge("unpublished_records", "Records of this gateway that are not published because they are invalid or exceed the limits."),
		Joins:       vec("joins_total", "Connections dialed to other gateways, by result (twice: the address led to a gateway that is already connected).", "result"),
	}
}

// OrDiscard returns m, or metrics that nobody sees if m is nil.
func (m *Metrics) OrDiscard() *Metrics {
	if m == nil {
		return NewMetrics(nil)
	}
	return m
}
