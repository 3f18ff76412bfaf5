package pending

import (
	"crypto/tls"
	"errors"
	"io"
	"syscall"
)

// Kinds of connections that are no attempt of a client; values of a metric.
const (
	ProbeLeft   = "left"    // ended, or reset, before a complete hello
	ProbeNotTLS = "not_tls" // said something else than TLS
)

// Probe says what a connection was on which the TLS handshake failed with err, if its peer
// only wanted to see whether somebody listens, as load balancers do: the peer connected
// and left, sent half of a hello and left, or asked for a page. Empty for all else, also
// for who has sent nothing in time: that is how a path looks which loses large packets.
func (e *Entry) Probe(err error) (kind string) {
	e.s.mu.Lock()
	spoke := !e.spoke.IsZero()
	e.s.mu.Unlock()
	var other tls.RecordHeaderError
	switch {
	case spoke:
	case errors.As(err, &other):
		return ProbeNotTLS
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ProbeLeft
	}
	return ""
}
