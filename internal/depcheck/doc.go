// Package depcheck holds the import laws of this repository as a test: which of
// our packages may import which, and why; what the pure packages must not
// touch; where client-go may live. A new edge is one reviewed line in
// edges_test.go.
//
// It reads the imports of every Go file, whatever its build tags, so that an
// edge cannot hide on another operating system. It exports nothing.
package depcheck
