package nodeproxy

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// line is how connections to gateways of other networks are set up.
type line struct {
	tcp.Line
	dial dialTCP // where this process is
}

func newLine(l tcp.Line) *line { return &line{l, dialKernel(hopKeepAlive, l.Control)} }

// measured returns what the kernel measured on the open connections to gateways of other networks, in the order of the
// networks' names.
func (p *Proxy) measured() []answer.Line {
	by := map[string]*answer.Line{}
	for key, s := range p.pool.Sessions() {
		gateway, ok := strings.CutPrefix(key.UID, gatewayUID)
		if !ok {
			continue
		}
		i, ok := tcp.InfoOf(s.Conn())
		if !ok {
			continue
		}
		network, _, _ := strings.Cut(gateway, "/")
		l := by[network]
		if l == nil {
			l = &answer.Line{Network: network, Congestion: map[string]int{}}
			by[network] = l
		}
		add(l, i)
	}
	lines := make([]answer.Line, 0, len(by))
	for _, l := range by {
		lines = append(lines, *l)
	}
	slices.SortFunc(lines, func(a, b answer.Line) int { return strings.Compare(a.Network, b.Network) })
	return lines
}

// add adds a connection to l.
func add(l *answer.Line, i tcp.Info) {
	l.Congestion[i.Congestion]++
	l.RTTMicros = (l.RTTMicros*int64(l.Connections) + i.RTT.Microseconds()) / int64(l.Connections+1)
	l.Connections++
	l.Segments += i.Segments
	l.Retransmitted += i.Retransmitted
	l.BytesPerSecond = max(l.BytesPerSecond, i.DeliveryRate)
}

// lineCollector has gauges of measured, read when they are collected. There are as many as other networks in use.
type lineCollector struct{ measured func() []answer.Line }

var (
	lineConnections = prometheus.NewDesc("isthmus_line_connections", "Open TCP connections to gateways of another network, by their congestion control algorithm.", []string{"network", "congestion"}, nil)
	lineRTT         = prometheus.NewDesc("isthmus_line_rtt_seconds", "Round-trip time to gateways of another network: the mean of the kernel's smoothed values of the open TCP connections.", []string{"network"}, nil)
	lineLoss        = prometheus.NewDesc("isthmus_line_retransmitted_ratio", "Share of the segments with data to gateways of another network that were retransmitted, of the open TCP connections since each was opened: an upper bound of the loss.", []string{"network"}, nil)
	lineRate        = prometheus.NewDesc("isthmus_line_delivery_rate_bytes", "Bytes per second that gateways of another network acknowledged lately: the most of an open TCP connection. What applications send bounds it.", []string{"network"}, nil)
)

// Describe implements prometheus.Collector.
func (c lineCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lineConnections, lineRTT, lineLoss, lineRate} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c lineCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.measured() {
		for congestion, n := range l.Congestion {
			out <- prometheus.MustNewConstMetric(lineConnections, prometheus.GaugeValue, float64(n), l.Network, congestion)
		}
		out <- prometheus.MustNewConstMetric(lineRTT, prometheus.GaugeValue, (time.Duration(l.RTTMicros) * time.Microsecond).Seconds(), l.Network)
		out <- prometheus.MustNewConstMetric(lineLoss, prometheus.GaugeValue, l.Loss(), l.Network)
		out <- prometheus.MustNewConstMetric(lineRate, prometheus.GaugeValue, float64(l.BytesPerSecond), l.Network)
	}
}
