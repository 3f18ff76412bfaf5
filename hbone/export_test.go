package hbone

import "testing"

// SetTransports has tests of this package run their sessions on transports of another kind,
// where they do not choose one themselves.
func SetTransports(pair func(testing.TB) (client, server Transport)) { transports = pair }

var transports func(testing.TB) (client, server Transport)

// breakTransport cuts s off from its peer.
func breakTransport(s *Session) {
	switch t := s.t.(type) {
	case *TLSTransport:
		t.rec.Conn.Close()
	case *Pipe:
		t.in.end(errPipeCut)
	}
}

// overTCP skips a test of what differs on other transports.
func overTCP(t testing.TB, what string) {
	t.Helper()
	if transports != nil {
		t.Skip("of TCP: " + what)
	}
}

// TestTLS is for package hbone_test.
var TestTLS = testTLS
