package gateway

import (
	"errors"
	"math"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/fairqueue"
	"github.com/isthmus-mesh/isthmus/mesh"
)

// How long a TLS handshake with a pod may take, from the connection to the pod on.
const (
	// handshakeTime is what a node proxy gives it by default (its timeouts.handshake,
	// 3 s) and a margin for its end to arrive. It is below the default of
	// limits.inner.wait, so that a place is given back within the time that a CONNECT
	// waits for one.
	handshakeTime = 3500 * time.Millisecond
	// helloTime is what is left at least behind the hello of a client that took
	// its time, where the pod is more patient than a node proxy is by default.
	helloTime = 500 * time.Millisecond
)

// errUnfinished is the end of a tunnel whose TLS handshake was not over in time.
var errUnfinished = errors.New("the TLS handshake with the pod was not over in time")

// innerHandshake is a TLS handshake with a pod from before the pod is dialed until it
// is over, its time is up, or its connection has ended. It takes part in nothing: it
// follows the records of both directions. Nil is none. Safe for concurrent use.
//
// It is over when the pod has begun to send a record after it could have received
// encrypted records of the client that are long enough for a Finished and follow on
// the pod's answer to the hello: a server of TLS 1.3 that asks for certificates has
// nothing to say in between, and what it says then is its SETTINGS, or an alert. Both
// "after" and "follow" go by what the kernel has received from the pod, not by what was
// read: a client decides how much is read of what the pod sends, by its flow control.
// A second hello, which a HelloRetryRequest asks for, begins anew.
type innerHandshake struct {
	slot *fairqueue.Slot[mesh.EndpointID]

	mu     sync.Mutex
	done   bool
	cut    bool        // its time was up
	timer  *time.Timer // until then; nil before the relay
	conn   *net.TCPConn
	client recordTracker
	pod    recordTracker
	asked  int64 // bytes that the pod had sent when the client's last hello was passed on
	proves bool  // the client's record follows on an answer to the hello
	proved int64 // bytes that the pod had sent when it was passed the client's proof; negative: it was not
}

func newInnerHandshake(slot *fairqueue.Slot[mesh.EndpointID]) *innerHandshake {
	return &innerHandshake{slot: slot, proved: -1}
}

// follow says which connection the handshake is on, and with which bytes of the client
// it begins.
func (h *innerHandshake) follow(conn *net.TCPConn, first []byte) {
	h.mu.Lock()
	h.conn = conn
	h.mu.Unlock()
	h.sends(first)
}

// finishedMin is the smallest body of an encrypted record with a Finished (RFC 8446
// §4.4.4 and §5.2): header and SHA-256 of the message, its type, and the tag of the
// cipher. An alert has 19 bytes.
const finishedMin = 4 + 32 + 1 + 16

// sends is called with what the client sends, before it is passed to the pod, and
// reports whether there is more to follow.
func (h *innerHandshake) sends(p []byte) (more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return false
	}
	received := h.received()
	for len(p) > 0 {
		n, begun, whole := h.client.next(p)
		p = p[n:]
		if begun {
			h.proves = received > h.asked
		}
		switch h.client.kind() {
		case recordHandshake: // in plaintext: a hello
			h.asked, h.proved = received, -1
		case recordEncrypted:
			if whole && h.proves && h.proved < 0 && h.client.size() >= finishedMin {
				h.proved = received
			}
		}
	}
	return true
}

// replies is called with what the pod sends, and with nothing at its FIN, and reports
// whether there is more to follow.
func (h *innerHandshake) replies(p []byte) (more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	over := len(p) == 0
	for len(p) > 0 && !h.done && !over {
		n, begun, _ := h.pod.next(p)
		p = p[n:]
		over = begun && h.proved >= 0 && h.pod.begin >= h.proved
	}
	if over {
		h.finish()
	}
	return !h.done
}

// received returns how many bytes the pod has sent, as far as the kernel has received
// them. The caller holds mu.
func (h *innerHandshake) received() int64 {
	n := int64(math.MaxInt64) // it is closed: nothing follows
	raw, err := h.conn.SyscallConn()
	if err != nil {
		return n
	}
	raw.Control(func(fd uintptr) {
		n = h.pod.at
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = max(n, int64(info.Bytes_received))
		}
	})
	return n
}

// expire calls cut if the handshake is not over after d.
func (h *innerHandshake) expire(d time.Duration, cut func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return
	}
	h.timer = time.AfterFunc(d, func() {
		h.mu.Lock()
		h.cut = !h.done
		h.finish()
		expired := h.cut
		h.mu.Unlock()
		if expired {
			cut()
		}
	})
}

// expired reports whether the handshake was not over in time.
func (h *innerHandshake) expired() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cut
}

// end gives up the place of h. It may be called again.
func (h *innerHandshake) end() {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.finish()
	}
}

// finish gives up the place of h; the caller holds mu.
func (h *innerHandshake) finish() {
	h.done = true
	if h.timer != nil {
		h.timer.Stop()
	}
	h.slot.Release()
}

// patience is how long the handshake on f's connection may go on, from now on.
func (g *Gateway) patience(f *forwarding) time.Duration {
	limit := max(handshakeTime, g.cfg.Timeouts.Silence+helloTime) // the pod is judged first
	return max(limit-time.Since(f.dialed), helloTime)
}
