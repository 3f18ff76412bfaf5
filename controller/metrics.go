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
	m := &Metrics{writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_controller_writes_total", Help: "Writes of ServiceImports (create, update, status, delete), of conditions of ServiceExports, and removals of start-up taints (taint), by result."}, []string{"write", "result"}),
		events:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_controller_events_total", Help: "Events written for objects with problems, by result."}, []string{"result"}),
		noticed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_controller_notices", Help: "Problems of objects that are reported in Events, while this controller leads."}),
		unsaid:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "isthmus_controller_notices_waiting", Help: "Problems of objects that wait for a free Event, of 5000 at most."}),
	}
	for _, w := range []string{"create", "update", "status", "delete", "conditions", taintWrite} {
		m.writes.WithLabelValues(w, "done")
	}
	m.events.WithLabelValues("done")
	r.MustRegister(m.writes, m.events, m.noticed, m.unsaid,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_controller_leading", Help: "1 while this controller leads. Only the leader writes."}, func() float64 {
			if _, leading := c.election.Leader(); leading {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_controller_imports", Help: "Number of ServiceImports."}, func() float64 {
			_, _, n := c.imports.Status()
			return float64(n)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_controller_problems", Help: "Lines of problems in /state."}, func() float64 { return float64(len(c.findings())) }))
	return m
}
