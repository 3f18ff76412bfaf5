package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

// capacity shows what this gateway can deliver, added up over the ports of its network's
// services: a scrape looks at each port, and at the pods that are out.
type capacity struct {
	d              *deliveries
	ready, healthy *prometheus.Desc
	out            *prometheus.Desc
}

func newCapacity(d *deliveries) *capacity {
	return &capacity{d: d,
		ready:   prometheus.NewDesc("isthmus_ready_capacity", "Capacity of this network's ready pods, per discovery. A pod counts once for each port of a service.", nil, nil),
		healthy: prometheus.NewDesc("isthmus_healthy_capacity", "The part of isthmus_ready_capacity that is available through this gateway.", nil, nil),
		out:     prometheus.NewDesc("isthmus_endpoints_out", "Ready pods that are ejected, once for each port of a service, by cause: witness (the node proxy beside the pod saw it fail), hop (this gateway cannot reach it), flapping.", []string{"cause"}, nil),
	}
}

func (c *capacity) Describe(out chan<- *prometheus.Desc) {
	out <- c.ready
	out <- c.healthy
	out <- c.out
}

func (c *capacity) Collect(out chan<- prometheus.Metric) {
	var ready, healthy uint64
	by := map[string]int{outWitness: 0, outHop: 0, outFlapping: 0}
	c.d.mu.Lock()
	for _, ports := range c.d.ports {
		for _, x := range ports {
			ready += uint64(x.fact.ReadyCapacity)
			healthy += uint64(x.fact.HealthyCapacity)
			for _, id := range x.fact.Exceptions {
				by[outCause(x.members[id])]++
			}
		}
	}
	c.d.mu.Unlock()
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	gauge(c.ready, float64(ready))
	gauge(c.healthy, float64(healthy))
	for cause, n := range by {
		gauge(c.out, float64(n), cause)
	}
}

// Values of the label cause.
const (
	outWitness  = "witness"
	outHop      = "hop"
	outFlapping = "flapping"
)

func outCause(m member) string {
	switch {
	case m.damped:
		return outFlapping
	case m.cause == record.Hop:
		return outHop
	}
	return outWitness
}
