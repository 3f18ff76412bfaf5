package nodeproxy

import "github.com/prometheus/client_golang/prometheus"

// toldCollector is what an operator's alert needs of what gateways tell: it collects when
// it is scraped, and of a process with a file zeros.
type toldCollector struct {
	own                      *ownNetwork
	age, led, doubted, names *prometheus.Desc
}

func newToldCollector(o *ownNetwork) *toldCollector {
	return &toldCollector{
		own:     o,
		age:     prometheus.NewDesc("isthmus_discovery_age_seconds", "Time since the discovery data from the own network's gateways was last known to be current. 0 while a gateway sends it, or with a discovery file.", nil, nil),
		led:     prometheus.NewDesc("isthmus_discovery_told", "1 while a gateway of the own network sends discovery data.", nil, nil),
		doubted: prometheus.NewDesc("isthmus_discovery_doubted", "Objects that the active source does not list and the previous one did. They are kept for a while.", nil, nil),
		names:   prometheus.NewDesc("isthmus_discovery_names", "Names and addresses requested from gateways.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *toldCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.age, c.led, c.doubted, c.names} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *toldCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	var age, led, doubted, names float64
	if c.own != nil {
		s := c.own.keeper.Status()
		if age, doubted, names = float64(s.AgeMS)/1000, float64(s.Doubted), float64(s.Names); s.Gateway != "" {
			led = 1
		}
	}
	gauge(c.age, age)
	gauge(c.led, led)
	gauge(c.doubted, doubted)
	gauge(c.names, names)
}
