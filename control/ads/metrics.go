package ads

import "github.com/prometheus/client_golang/prometheus"

// Reasons why a server closes a stream or ignores a request.
const (
	reasonUnauthenticated = "unauthenticated" // no valid proof, or no longer
	reasonStreams         = "streams"         // too many streams
	reasonSubscriptions   = "subscriptions"   // too many subscriptions on one stream
	reasonMalformed       = "malformed"       // an invalid request
	reasonOversized       = "oversized"       // a request larger than MaxRequest
	reasonType            = "type"            // a type that the server does not have
)

// Metrics counts what a server does.
type Metrics struct {
	Streams   prometheus.Gauge
	Rejected  *prometheus.CounterVec // by reason
	NACKs     prometheus.Counter
	Resources prometheus.Counter
}

// NewMetrics registers the metrics of a server with reg. A nil reg leaves them
// unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "isthmus", Subsystem: "xds", Name: name, Help: help}
	}
	m := &Metrics{
		Streams:   prometheus.NewGauge(prometheus.GaugeOpts(opts("streams", "Open discovery streams."))),
		Rejected:  prometheus.NewCounterVec(prometheus.CounterOpts(opts("rejected_total", "Discovery streams and requests rejected, by reason.")), []string{"reason"}),
		NACKs:     prometheus.NewCounter(prometheus.CounterOpts(opts("nacks_total", "Responses that a client rejected, wholly or in part."))),
		Resources: prometheus.NewCounter(prometheus.CounterOpts(opts("sent_resources_total", "Resources sent to clients."))),
	}
	if reg != nil {
		reg.MustRegister(m.Streams, m.Rejected, m.NACKs, m.Resources)
	}
	return m
}
