package pending

import (
	"crypto/tls"
	"errors"
	"io"
	"syscall"
)

// Kinds of probes; values of a metric.
const (
	ProbeLeft   = "left"    // the connection ended or was reset before a complete hello
	ProbeNotTLS = "not_tls" // the first bytes were not TLS
)

// Probe returns the kind of probe if the connection of e, whose TLS handshake failed
// with err, was one; empty otherwise. Load balancers probe a port: they connect and
// leave, send half of a hello and leave, or request a page. A peer that sends nothing
// until the time limit is no probe: a path that loses large packets looks like that.
func (e *Entry) Probe(err error) (kind string) {
	e.s.mu.Lock()
	spoke := e.spoke
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
