package boundtoken

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what was found of tokens. Create it with NewMetrics.
type Metrics struct{ tokens *prometheus.CounterVec }

// NewMetrics registers them with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_bound_tokens_total",
		Help: "Bound service-account tokens received, by result: review (accepted by the API server), keys (accepted by its cached keys while it was unavailable), or the reason of the refusal."}, []string{"result"})}
	for _, why := range Reasons {
		m.tokens.WithLabelValues(string(why))
	}
	for _, how := range []How{ByReview, ByKeys} {
		m.tokens.WithLabelValues(string(how))
	}
	if reg != nil {
		reg.MustRegister(m.tokens)
	}
	return m
}

func (m *Metrics) refused(why Reason) { m.tokens.WithLabelValues(string(why)).Inc() }
func (m *Metrics) accepted(how How)   { m.tokens.WithLabelValues(string(how)).Inc() }
