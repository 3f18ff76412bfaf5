package names

import "github.com/prometheus/client_golang/prometheus"

// result is what became of a query.
type result int

const (
	found result = iota
	noData
	nameError
	unknown
	passed
	unanswered
	malformed
	busy
	dropped
)

// results are their names in metrics and logs.
var results = [...]string{found: "found", noData: "no_data", nameError: "no_such_name", unknown: "unknown", passed: "passed", unanswered: "unanswered", malformed: "malformed", busy: "busy", dropped: "dropped"}

// Metrics of all Servers of a process. Labels are closed sets.
type Metrics struct {
	requests                           [len(results)]prometheus.Counter
	upstreamRequests, upstreamFailures prometheus.Counter
	upstreamDuration                   prometheus.Histogram
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_dns_requests_total",
		Help: "DNS queries of captured pods, by result. Answered from the mesh: found, no_data, no_such_name, unknown (no gateway has reported yet whether the name exists). By the pod's own resolver: passed, unanswered. Refused: malformed, busy (too many queries of the pod wait), dropped (not a query)."}, []string{"result"})
	m := &Metrics{
		upstreamRequests: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_dns_upstream_requests_total", Help: "Queries sent to pods' own DNS servers."}),
		upstreamFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_dns_upstream_failures_total", Help: "Queries that one of a pod's own DNS servers did not answer in time, or that did not reach it."}),
		upstreamDuration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "isthmus_dns_upstream_request_duration_seconds", Help: "Time until a pod's own DNS servers answered.", Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}}),
	}
	for i, name := range results {
		m.requests[i] = requests.WithLabelValues(name)
	}
	r.MustRegister(requests, m.upstreamRequests, m.upstreamFailures, m.upstreamDuration)
	return m
}
