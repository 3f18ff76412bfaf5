package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/isthmus-mesh/isthmus/internal/fairqueue"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// innerHandshakes bounds the TLS handshakes with pods that this gateway carries. A pod's
// node proxy knows all clients of the gateway by one address, and cannot tell the one
// that leaves its handshakes unfinished from the others: the gateway can.
type innerHandshakes struct {
	queue *fairqueue.Queue[mesh.EndpointID]
	wait  time.Duration
	waits *prometheus.CounterVec
}

// errCrowded is that of a CONNECT whose turn at a pod did not come in time.
var errCrowded = errors.New("too many TLS handshakes with the pod are not over")

// Results of waits.
const (
	waitServed    = "served"
	waitTimeout   = "timeout"
	waitCancelled = "cancelled"
)

// waitBounds says how bounds are called in metrics, and which key of limits.inner sets them.
var waitBounds = map[fairqueue.Bound]struct{ label, key string }{
	fairqueue.ByClient: {"identity", "handshakesPerIdentity"},
	fairqueue.ByTarget: {"pod", "handshakesPerPod"},
}

func newInnerHandshakes(l InnerLimits, r prometheus.Registerer) *innerHandshakes {
	i := &innerHandshakes{queue: fairqueue.New[mesh.EndpointID](l.HandshakesPerIdentity, l.HandshakesPerPod), wait: l.Wait,
		waits: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "isthmus_inner_handshake_waits_total",
			Help: "CONNECTs that waited because too many TLS handshakes with the pod were in progress, by limit (bound) and result."}, []string{"bound", "result"})}
	for bound := range waitBounds {
		for _, result := range []string{waitServed, waitTimeout, waitCancelled} {
			i.waits.WithLabelValues(waitBounds[bound].label, result)
		}
	}
	r.MustRegister(i.waits,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_inner_handshakes", Help: "TLS handshakes between clients and pods in progress."},
			func() float64 { held, _ := i.queue.Counts(); return float64(held) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_inner_handshakes_waiting", Help: "CONNECTs that wait for a TLS handshake with a pod."},
			func() float64 { _, waiting := i.queue.Counts(); return float64(waiting) }))
	return i
}

// admit returns when the client of f may begin a handshake with the pod w: at once,
// nearly always. The error is ctx's cause, or errCrowded.
func (i *innerHandshakes) admit(ctx context.Context, f *forwarding, w *mesh.Workload) (*innerHandshake, error) {
	slot, bound := i.queue.Enter(w.Endpoint, f.client.Identity)
	if bound == "" {
		return newInnerHandshake(slot), nil
	}
	f.opening.Done() // it takes no time of this process while it waits
	err := slot.Wait(ctx, i.wait)
	result := waitServed
	switch {
	case errors.Is(err, fairqueue.ErrTimeout):
		result, err = waitTimeout, fmt.Errorf("%w: limits.inner.%s", errCrowded, waitBounds[bound].key)
	case err != nil:
		result = waitCancelled
	}
	i.waits.WithLabelValues(waitBounds[bound].label, result).Inc()
	if err != nil {
		slot.Release()
		return nil, err
	}
	return newInnerHandshake(slot), nil
}
