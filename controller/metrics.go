package controller

import "github.com/prometheus/client_golang/prometheus"

// Metrics of a controller.
type Metrics struct {
	writes  *prometheus.CounterVec
	events  *prometheus.CounterVec
	noticed prometheus.Gauge
	unsaid  prometheus.Gauge
}

func newMetrics(r prometheus.Registerer, c *Controller) *Metrics {
	m := &Metrics{writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_controller_writes_total", Help: "Writes of ServiceImports (create, update, status, delete) of the conditions of ServiceExports, and of start-up taints that are removed, by what came of them."}, []string{"write", "result"}),
		events:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_controller_events_total", Help: "Events that were written at objects that are problems, by what came of it."}, []string{"result"}),
		noticed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_controller_notices", Help: "What is wrong with objects and stands in Events, while this controller leads."}),
		unsaid:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_controller_notices_waiting", Help: "What is wrong with objects and waits for room among the Events, which are 5000 at most."}),
	}
	for _, w := range []string{"create", "update", "status", "delete", "conditions", taintWrite} {
		m.writes.WithLabelValues(w, "done")
	}
	m.events.WithLabelValues("done")
	r.MustRegister(m.writes, m.events, m.noticed, m.unsaid,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_controller_leading", Help: "1 while this controller leads: it alone writes."}, func() float64 {
			if _, leading := c.election.Leader(); leading {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_controller_imports", Help: "ServiceImports that there are."}, func() float64 {
			_, _, n := c.imports.Status()
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_controller_problems", Help: "Lines of problems in /state: what an operator should know."}, func() float64 { return float64(len(c.findings())) }))
	return m
}
