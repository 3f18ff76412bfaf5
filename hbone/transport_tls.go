package hbone

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
)

// TLSTransport is crypto/tls on any net.Conn. Below TLS it reads ciphertext in large pieces and
// writes each burst with one Write. Above TLS a Read returns every complete record that is
// buffered. Together this saves 30–40 % CPU against crypto/tls on a plain TCPConn (measured
// 2026-11, loopback).
type TLSTransport struct {
	tc   *tls.Conn
	rec  *recordConn
	peer Peer
}

var _ Transport = (*TLSTransport)(nil)

// ClientTLS does the client's handshake on raw, bounded by ctx. It owns raw, and closes it on
// error.
func ClientTLS(ctx context.Context, raw net.Conn, cfg *tls.Config) (*TLSTransport, error) {
	rec := newRecordConn(raw)
	return handshake(ctx, rec, tls.Client(rec, cfg), "with")
}

// ServerTLS is the server's counterpart of ClientTLS.
func ServerTLS(ctx context.Context, raw net.Conn, cfg *tls.Config) (*TLSTransport, error) {
	rec := newRecordConn(raw)
	return handshake(ctx, rec, tls.Server(rec, cfg), "from")
}

func handshake(ctx context.Context, rec *recordConn, tc *tls.Conn, word string) (*TLSTransport, error) {
	if err := tc.HandshakeContext(ctx); err != nil {
		tc.Close()
		return nil, fmt.Errorf("hbone: TLS handshake %s %v: %w", word, rec.RemoteAddr(), err)
	}
	return &TLSTransport{tc: tc, rec: rec, peer: PeerOf(tc.ConnectionState())}, nil
}

// PeerOf returns the peer of a TLS connection, the zero value if it has shown no certificate.
func PeerOf(state tls.ConnectionState) (p Peer) {
	if len(state.PeerCertificates) == 0 {
		return p
	}
	for _, c := range state.PeerCertificates {
		if p.NotAfter.IsZero() || c.NotAfter.Before(p.NotAfter) {
			p.NotAfter = c.NotAfter
		}
	}
	if id, err := x509svid.IDFromCert(state.PeerCertificates[0]); err == nil {
		p.ID = id
	}
	return p
}

// Protocol returns the negotiated ALPN protocol, empty if there was none.
func (t *TLSTransport) Protocol() string { return t.tc.ConnectionState().NegotiatedProtocol }

// NetConn returns the *tls.Conn, for a caller that takes over the connection because Protocol is not
// h2. The transport must not be used afterwards.
func (t *TLSTransport) NetConn() net.Conn { return t.tc }

// ConnectionState returns the state of the TLS connection.
func (t *TLSTransport) ConnectionState() tls.ConnectionState { return t.tc.ConnectionState() }

// TLS returns the state of the TLS connection that the session runs on. ok is false if it runs on
// another transport.
func (s *Session) TLS() (state tls.ConnectionState, ok bool) {
	switch t := s.t.(type) {
	case *TLSTransport:
		return t.ConnectionState(), true
	case *Pipe:
		return t.ConnectionState(), !t.inner
	}
	return state, false
}

// Conn returns the connection that s runs on. Use it only for socket statistics. It is nil if s runs
// in a stream, or on another transport.
func (s *Session) Conn() net.Conn {
	if t, ok := s.t.(*TLSTransport); ok && s.parent == nil {
		return t.rec.Conn
	}
	return nil
}

func (t *TLSTransport) Peer() Peer                          { return t.peer }
func (t *TLSTransport) LocalAddr() net.Addr                 { return t.tc.LocalAddr() }
func (t *TLSTransport) RemoteAddr() net.Addr                { return t.tc.RemoteAddr() }
func (t *TLSTransport) SetReadDeadline(at time.Time) error  { return t.tc.SetReadDeadline(at) }
func (t *TLSTransport) SetWriteDeadline(at time.Time) error { return t.tc.SetWriteDeadline(at) }
func (t *TLSTransport) Close() error                        { return t.tc.Close() }

// Read implements Transport. With len(p) of at least 16 KiB no decrypted data stays buffered.
func (t *TLSTransport) Read(p []byte) (int, error) {
	n, err := t.tc.Read(p)
	if err == io.EOF && t.rec.cut {
		err = errCut
	}
	if err != nil || n == 0 {
		return n, err
	}
	for n < len(p) { // crypto/tls returns 0 and no error for an empty buffer
		size, ok := t.rec.next()
		if !ok || size > len(p)-n {
			break
		}
		k, err := t.readHere(p[n:])
		n += k
		if err != nil {
			t.rec.keep(err) // the next Read returns it if it is permanent
			break
		}
	}
	return n, nil
}

// errCut is returned for a connection that was closed without TLS's closing alert. The cause is a
// crashed process or a middlebox, never an orderly close (RFC 8446 §6.1). Between two records
// crypto/tls returns io.EOF for that.
var errCut = fmt.Errorf("connection closed without a TLS closing alert: %w", io.ErrUnexpectedEOF)

// readHere reads without touching the socket.
func (t *TLSTransport) readHere(p []byte) (int, error) {
	t.rec.noWait = true
	defer func() { t.rec.noWait = false }()
	return t.tc.Read(p)
}

// WriteBurst implements Transport.
func (t *TLSTransport) WriteBurst(p []byte) error {
	t.rec.cork()
	_, err := t.tc.Write(p)
	if ferr := t.rec.uncork(); err == nil {
		err = ferr
	}
	return err
}

// await blocks until a complete record is buffered, or Read has an error to return.
func (t *TLSTransport) await() { t.rec.await() }

// buffered reports whether a complete record is buffered.
func (t *TLSTransport) buffered() bool {
	_, ok := t.rec.next()
	return ok
}

// closeWrite sends the closing alert and closes the write side of the connection below. The error
// is errors.ErrUnsupported if that connection has no CloseWrite.
func (t *TLSTransport) closeWrite() error {
	half, ok := t.rec.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	if err := t.tc.CloseWrite(); err != nil {
		return err
	}
	return half.CloseWrite()
}

// abort closes the connection below without a closing alert.
func (t *TLSTransport) abort() { t.rec.Conn.Close() }
