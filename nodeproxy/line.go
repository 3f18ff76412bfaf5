package nodeproxy

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// line is how connections to gateways of other networks are set up.
type line struct {
	tcp.Line
	dial dialTCP // where this process is
}

func newLine(l tcp.Line) *line { return &line{l, dialKernel(hopKeepAlive, l.Control)} }

// measured returns what the kernel measured on the open connections to gateways of other networks, and which transport new
// sessions use, in the order of the networks' names.
func (p *Proxy) measured() []answer.Line {
	by := map[string]*answer.Line{}
	line := func(network string) *answer.Line {
		l := by[network]
		if l == nil {
			l = &answer.Line{Network: network, Congestion: map[string]int{}}
			by[network] = l
			p.choice(l)
		}
		return l
	}
	for _, network := range p.transports.networks() {
		line(network)
	}
	for key, s := range p.pool.Sessions() {
		if !strings.HasPrefix(key.UID, gatewayUID) {
			continue
		}
		if i, ok := infoOf(s.Conn()); ok {
			add(line(networkOf(key)), i)
		} else if strings.HasPrefix(key.Address, overQUIC) {
			line(networkOf(key)).QUIC++
		}
	}
	out := make([]answer.Line, 0, len(by))
	for _, l := range by {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b answer.Line) int { return strings.Compare(a.Network, b.Network) })
	return out
}

// choice adds the transport, and the reason for it, unless it is TCP by configuration.
func (p *Proxy) choice(l *answer.Line) {
	switch t := p.cfg.Lines.TransportTo(l.Network); t {
	case lines.TCP:
	case lines.QUIC:
		l.Transport, l.Reason = t, "lines.transport"
	default:
		l.Transport, l.Reason, _ = p.transports.now(l.Network)
	}
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
	lineRTT         = prometheus.NewDesc("isthmus_line_rtt_seconds", "Round-trip time to gateways of another network: mean of the kernel's smoothed values for the open TCP connections.", []string{"network"}, nil)
	lineLoss        = prometheus.NewDesc("isthmus_line_retransmitted_ratio", "Share of data segments to gateways of another network that were retransmitted since the open TCP connections were opened: an upper bound of the loss.", []string{"network"}, nil)
	lineTransport   = prometheus.NewDesc("isthmus_line_transport", "1 for the transport of new sessions for small messages to another network, 0 for the other one. Only with lines.transport quic or auto.", []string{"network", "transport"}, nil)
	lineRate        = prometheus.NewDesc("isthmus_line_delivery_rate_bytes", "Bytes per second that gateways of another network acknowledged lately: the most of any open TCP connection. Limited by how much applications send.", []string{"network"}, nil)
)

// Describe implements prometheus.Collector.
func (c lineCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lineConnections, lineRTT, lineLoss, lineRate, lineTransport} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c lineCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.measured() {
		for congestion, n := range l.Congestion {
			out <- prometheus.MustNewConstMetric(lineConnections, prometheus.GaugeValue, float64(n), l.Network, congestion)
		}
		if l.Transport != "" {
			used := map[string]float64{lines.TCP: 0, lines.QUIC: 0}
			used[l.Transport] = 1
			for transport, value := range used {
				out <- prometheus.MustNewConstMetric(lineTransport, prometheus.GaugeValue, value, l.Network, transport)
			}
		}
		if l.Connections == 0 {
			continue
		}
		out <- prometheus.MustNewConstMetric(lineRTT, prometheus.GaugeValue, (time.Duration(l.RTTMicros) * time.Microsecond).Seconds(), l.Network)
		out <- prometheus.MustNewConstMetric(lineLoss, prometheus.GaugeValue, l.Loss(), l.Network)
		out <- prometheus.MustNewConstMetric(lineRate, prometheus.GaugeValue, float64(l.BytesPerSecond), l.Network)
	}
}
