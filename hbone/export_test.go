package hbone

import "testing"

// SetTransports has tests of this package run their sessions on transports of another kind,
// where they do not choose one themselves.
func SetTransports(pair func(testing.TB) (client, server Transport)) { transports = pair }

var transports func(testing.TB) (client, server Transport)

// TestTLS is for package hbone_test.
var TestTLS = testTLS
