package istioca

import (
	"maps"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Metrics counts what becomes of requests. Create it with NewMetrics.
type Metrics struct {
	requests *prometheus.CounterVec
	evicted  prometheus.Counter

	mu     sync.Mutex
	counts map[string]uint64 // the same
}

// Results is how many requests there were, by what became of them.
func (m *Metrics) Results() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.counts)
}

// results are what can become of a request, by the code that it is answered with.
var results = map[codes.Code]string{
	codes.OK: "issued", codes.InvalidArgument: "invalid", codes.Unauthenticated: "unauthenticated", codes.PermissionDenied: "denied",
	codes.ResourceExhausted: "limited", codes.Unavailable: "unavailable",
}

// NewMetrics registers them with reg; nil leaves them unregistered.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{counts: map[string]uint64{"issued": 0}, requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_ca_requests_total",
		Help: "Requests for certificates, by result: issued, invalid (cannot be granted), unauthenticated (unknown caller), denied (not allowed for the caller), limited (too many), unavailable (the caller cannot be verified now), failed."}, []string{"result"})}
	m.evicted = prometheus.NewCounter(prometheus.CounterOpts{Name: "isthmus_ca_connections_evicted_total", Help: "Connections to the CA service closed because too many were open."})
	for _, result := range results {
		m.requests.WithLabelValues(result)
	}
	m.requests.WithLabelValues("failed")
	if reg != nil {
		reg.MustRegister(m.requests, m.evicted)
	}
	return m
}

func (m *Metrics) count(err error) {
	result, ok := results[status.Code(err)]
	if !ok {
		result = "failed"
	}
	m.requests.WithLabelValues(result).Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[result]++
}
