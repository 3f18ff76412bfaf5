package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
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

// innerHandshake is one of them, from before the pod is dialled until it is over, or
// its connection. Nil is none.
type innerHandshake struct {
	slot    *fairqueue.Slot[mesh.EndpointID]
	retries bool // the pod has asked for another hello
	started bool // the pod has answered
	handed  int64
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
			Help: "CONNECTs that waited because too many TLS handshakes with the pod were not over, by whose bound it was (identity, pod) and result (served, timeout, cancelled)."}, []string{"bound", "result"})}
	for bound := range waitBounds {
		for _, result := range []string{waitServed, waitTimeout, waitCancelled} {
			i.waits.WithLabelValues(waitBounds[bound].label, result)
		}
	}
	r.MustRegister(i.waits,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_inner_handshakes", Help: "TLS handshakes between clients and pods that are not over."},
			func() float64 { held, _ := i.queue.Counts(); return float64(held) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "isthmus_inner_handshakes_waiting", Help: "CONNECTs that wait for their turn at a pod."},
			func() float64 { _, waiting := i.queue.Counts(); return float64(waiting) }))
	return i
}

// admit returns when the client of f may begin a handshake with the pod w: at once,
// nearly always. The error is ctx's cause, or errCrowded.
func (i *innerHandshakes) admit(ctx context.Context, f *forwarding, w *mesh.Workload) (*innerHandshake, error) {
	slot, bound := i.queue.Enter(w.Endpoint, f.client.Identity)
	if bound == "" {
		return &innerHandshake{slot: slot}, nil
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
	return &innerHandshake{slot: slot}, nil
}

// end gives up the place of h. It may be called again.
func (h *innerHandshake) end() {
	if h != nil {
		h.slot.Release()
	}
}

// replied is called each time that the pod has sent something, with how many bytes the
// relay had handed to it, and reports whether the handshake is over. It is when the pod
// sends something behind what the client sent behind the pod's first flight: a server
// of TLS 1.3 that asks for certificates has nothing to say before it has seen the
// client's, and what it says then is its SETTINGS, or an alert.
func (h *innerHandshake) replied(handed int64) (over bool) {
	switch {
	case !h.started:
		h.started = true
	case handed == h.handed:
		return false // more of the same flight
	case h.retries:
		h.retries = false
	default:
		h.end()
		return true
	}
	h.handed = handed
	return false
}

// helloRetry is the random of a ServerHello that asks for another ClientHello (RFC 8446
// §4.1.3).
var helloRetry = []byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// asksForAnotherHello reports whether what can be read from conn, and stays there, is a
// HelloRetryRequest: the client answers it, and the pod that, before any certificate was
// shown.
func asksForAnotherHello(conn *net.TCPConn) bool {
	const before = recordHeader + 4 + 2 // the header of the message and its version
	var b [before + 32]byte
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	raw.Control(func(fd uintptr) { n, _, _ = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT) })
	return n == len(b) && bytes.Equal(b[before:], helloRetry)
}
