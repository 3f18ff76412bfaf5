package nodeproxy

import (
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/answer"
	"github.com/isthmus-mesh/isthmus/internal/lines"
	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// line sets up connections to gateways of other networks.
type line struct {
	tcp.Line
	dial dialTCP // in the network namespace of this process
}

func newLine(l tcp.Line) *line { return &line{l, dialKernel(hopKeepAlive, l.Control)} }

// measured returns statistics of the open connections to gateways of other networks, and which transport new sessions use, in
// the order of the networks' names. A network with lines.transport quic is listed without connections too.
func (p *Proxy) measured() []answer.Line {
	by := map[string]*answer.Line{}
	line := func(network string) *answer.Line {
		l := by[network]
		if l == nil {
			l = &answer.Line{Network: network, Congestion: map[string]int{}}
			by[network] = l
			switch t := p.cfg.Lines.TransportTo(network); t {
			case lines.TCP: // by configuration
			case lines.QUIC:
				l.Transport, l.Reason = t, "lines.transport"
				if p.cfg.Lines.Transports[network] != "" {
					l.Reason = "lines.transports"
				}
			default:
				failing := p.transports.failing(network)
				l.QUICFailing = &failing
				l.Transport, l.Reason = p.transports.current(network)
			}
		}
		return l
	}
	for _, network := range p.transports.networks() {
		line(network)
	}
	for _, network := range p.store.Current().GatewayNetworks() {
		if network != p.cfg.Network && p.cfg.Lines.TransportTo(network) == lines.QUIC {
			line(network)
		}
	}
	for key, s := range p.pool.Sessions() {
		if !strings.HasPrefix(key.UID, gatewayUID) {
			continue
		}
		if i, ok := infoOf(s.Conn()); ok {
			add(line(networkOf(key)), i)
		} else if x, ok := s.PipeStats(); ok {
			addQUIC(line(networkOf(key)), x)
		}
	}
	for network, loss := range p.transports.losses(p.gatewaySessions()) {
		l := by[network]
		if l != nil && l.Connections > 0 {
			l.Loss = loss.tcp.share()
		}
		if l != nil && l.QUIC > 0 {
			l.QUICLoss = loss.quic.share()
		}
	}
	out := make([]answer.Line, 0, len(by))
	for _, network := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[network])
	}
	return out
}

// add adds a TCP connection to l.
func add(l *answer.Line, i tcp.Info) {
	l.Congestion[i.Congestion]++
	l.Connections++
	l.RTTMicros += (i.RTT.Microseconds() - l.RTTMicros) / int64(l.Connections)
	l.BytesPerSecond = max(l.BytesPerSecond, i.DeliveryRate)
}

func addQUIC(l *answer.Line, x hbone.PipeStats) {
	l.QUIC++
	l.QUICRTTMicros += (x.RTT.Microseconds() - l.QUICRTTMicros) / int64(l.QUIC)
}

// lineCollector has gauges of measured, read when they are collected. There are as many as other networks in use.
type lineCollector struct{ measured func() []answer.Line }

var (
	lineConnections = prometheus.NewDesc("isthmus_line_connections", "Open connections to gateways of another network, by transport and congestion control algorithm.", []string{"network", "transport", "congestion"}, nil)
	lineRTT         = prometheus.NewDesc("isthmus_line_rtt_seconds", "Round-trip time to gateways of another network: mean of the smoothed values of the open connections.", []string{"network", "transport"}, nil)
	lineLoss        = prometheus.NewDesc("isthmus_line_loss_ratio", "Share of the data to gateways of another network that was lost lately: samples count half after 5 minutes. Connections for bulk are left out. TCP: segments. QUIC: bytes in packets, far too few where connections send few messages.", []string{"network", "transport"}, nil)
	lineTransport   = prometheus.NewDesc("isthmus_line_transport", "1 for the transport of new sessions for small messages to another network, 0 for the other one. Only with lines.transport quic or auto.", []string{"network", "transport"}, nil)
	lineFailing     = prometheus.NewDesc("isthmus_line_quic_failing", "1 while new sessions for small messages to another network use TCP because QUIC failed: UDP does not pass, is slow, or loses far more than TCP. Only with lines.transport auto.", []string{"network"}, nil)
	lineRate        = prometheus.NewDesc("isthmus_line_delivery_rate_bytes", "Bytes per second that gateways of another network acknowledged lately: the most of any open TCP connection. Limited by how much applications send.", []string{"network"}, nil)
)

// Describe implements prometheus.Collector.
func (c lineCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lineConnections, lineRTT, lineLoss, lineRate, lineTransport, lineFailing} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c lineCollector) Collect(out chan<- prometheus.Metric) {
	for _, l := range c.measured() {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{l.Network}, labels...)...)
		}
		for congestion, n := range l.Congestion {
			gauge(lineConnections, float64(n), lines.TCP, congestion)
		}
		if l.Transport != "" {
			used := map[string]float64{lines.TCP: 0, lines.QUIC: 0}
			used[l.Transport] = 1
			for transport, value := range used {
				gauge(lineTransport, value, transport)
			}
		}
		if l.QUICFailing != nil {
			failing := 0.
			if *l.QUICFailing {
				failing = 1
			}
			gauge(lineFailing, failing)
		}
		for transport, loss := range map[string]*float64{lines.TCP: l.Loss, lines.QUIC: l.QUICLoss} {
			if loss != nil {
				gauge(lineLoss, *loss, transport)
			}
		}
		if l.QUIC > 0 {
			gauge(lineConnections, float64(l.QUIC), lines.QUIC, "newreno") // the only algorithm of quic-go
			gauge(lineRTT, float64(l.QUICRTTMicros)/1e6, lines.QUIC)
		}
		if l.Connections > 0 {
			gauge(lineRTT, float64(l.RTTMicros)/1e6, lines.TCP)
			gauge(lineRate, float64(l.BytesPerSecond))
		}
	}
}
