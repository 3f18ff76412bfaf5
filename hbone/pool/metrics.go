package pool

import "github.com/prometheus/client_golang/prometheus"

// Metrics collects a pool's Stats when it is scraped.
type Metrics struct {
	p                                    *Pool
	sessions, streams, waiting, inFlight *prometheus.Desc
	crowded, halted                      *prometheus.Desc
	requests, failed, dials, repeats     *prometheus.Desc
	hedges, hedgesWon, retired           *prometheus.Desc
}

// NewMetrics makes the collector of p; the main registers it.
func NewMetrics(p *Pool) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("isthmus_pool_"+name, help, labels, nil)
	}
	return &Metrics{
		p:         p,
		sessions:  desc("sessions", "Shared sessions."),
		streams:   desc("streams", "Open streams on shared sessions."),
		waiting:   desc("waiting", "Requests that wait for a session or a stream."),
		inFlight:  desc("dials_in_flight", "Dials in progress."),
		crowded:   desc("crowded_sessions", "Sessions with half of their window taken by unread streams. New streams use other sessions."),
		halted:    desc("halted_sessions", "Sessions that carried nothing for a second because unread streams take the whole connection window: see docs/flow-control.md."),
		failed:    desc("failed_total", "Requests for a stream that got no session, by reason: halted (all sessions are full of unread data), full (none had a free stream in time), dial (every dial failed), left (the caller left or timed out during the dial).", "reason"),
		requests:  desc("requests_total", "Requests for a stream, by session: ready, or waited (for a dial or a stream).", "session"),
		dials:     desc("dials_total", "Completed dials, by result.", "result"),
		repeats:   desc("repeats_total", "Requests repeated on another session, by reason: full (another request took the last stream), refused (REFUSED_STREAM), gone (the session closed before a response).", "reason"),
		hedges:    desc("hedges_total", "Dials started beside a session with a silent peer."),
		hedgesWon: desc("hedges_won_total", "Silent sessions abandoned because such a dial was answered first."),
		retired:   desc("retired_total", "Sessions taken out of use: idle, expired, drained, closed, or abandoned."),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sessions, m.streams, m.waiting, m.inFlight, m.crowded, m.halted, m.requests, m.failed, m.dials, m.repeats, m.hedges, m.hedgesWon, m.retired} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	s := m.p.Stats()
	gauge := func(d *prometheus.Desc, n int) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge(m.sessions, s.Sessions)
	gauge(m.streams, s.Streams)
	gauge(m.waiting, s.Waiting)
	gauge(m.inFlight, s.Dialing)
	gauge(m.crowded, s.Crowded)
	gauge(m.halted, s.Halted)
	count(m.failed, s.Failed.Halted, "halted")
	count(m.failed, s.Failed.Full, "full")
	count(m.failed, s.Failed.Dial, "dial")
	count(m.failed, s.Failed.Left, "left")
	count(m.requests, s.Reused, "ready")
	count(m.requests, s.Waited, "waited")
	count(m.dials, s.Dialled, "ok")
	count(m.dials, s.DialErrors, "error")
	count(m.repeats, s.Full, "full")
	count(m.repeats, s.Refused, "refused")
	count(m.repeats, s.Retried, "gone")
	count(m.hedges, s.Hedges)
	count(m.hedgesWon, s.HedgesWon)
	count(m.retired, s.Retired)
}
