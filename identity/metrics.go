package identity

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics is what an operator's alert needs of a Manager: it collects from the
// Manager's state when it is scraped. Identities are no labels; Status names
// them.
type Metrics struct {
	m       *Manager
	fetches *prometheus.Desc
	svids   *prometheus.Desc
	failing *prometheus.Desc
	missing *prometheus.Desc
	left    *prometheus.Desc
	refused *prometheus.Desc
}

// NewMetrics makes the collector of m; the main registers it.
func NewMetrics(m *Manager) *Metrics {
	return &Metrics{
		m:       m,
		fetches: prometheus.NewDesc("isthmus_identity_fetches_total", "Fetches of an SVID from the source, by result.", []string{"result"}, nil),
		svids:   prometheus.NewDesc("isthmus_identity_svids", "Valid SVIDs.", nil, nil),
		failing: prometheus.NewDesc("isthmus_identity_failing", "Identities with a failed last fetch.", nil, nil),
		left:    prometheus.NewDesc("isthmus_identity_expiry_seconds", "Time until the first SVID expires; negative from then until it is replaced. Absent before the first SVID.", nil, nil),
		refused: prometheus.NewDesc("isthmus_identity_reloads_refused_total", "Rejected reloads of the source; the previous content stays in force.", nil, nil),
		missing: prometheus.NewDesc("isthmus_identity_missing", "Identities that this process needs, without a valid SVID.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.fetches, c.svids, c.failing, c.missing, c.left, c.refused} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Metrics) Collect(out chan<- prometheus.Metric) {
	now := time.Now()
	var svids, failing, known int
	var left time.Duration
	for _, s := range c.m.Status() {
		if s.Failures > 0 {
			failing++
		}
		if s.NotAfter.IsZero() {
			continue
		}
		d := s.NotAfter.Sub(now)
		if d > 0 {
			svids++
		}
		if known++; known == 1 || d < left {
			left = d
		}
	}
	out <- prometheus.MustNewConstMetric(c.fetches, prometheus.CounterValue, float64(c.m.fetched.Load()), "ok")
	out <- prometheus.MustNewConstMetric(c.fetches, prometheus.CounterValue, float64(c.m.failed.Load()), "error")
	out <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(c.m.refused.Load()))
	out <- prometheus.MustNewConstMetric(c.svids, prometheus.GaugeValue, float64(svids))
	out <- prometheus.MustNewConstMetric(c.failing, prometheus.GaugeValue, float64(failing))
	out <- prometheus.MustNewConstMetric(c.missing, prometheus.GaugeValue, float64(len(c.m.Missing())))
	if known > 0 {
		out <- prometheus.MustNewConstMetric(c.left, prometheus.GaugeValue, left.Seconds())
	}
}
