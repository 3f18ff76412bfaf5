// Package depcheck holds the import laws of this repository as a test: which of
// our packages may import which, and why; which modules of others each of them
// imports; what the pure packages must not touch; what a binary must not link,
// whoever imports it. A new edge is one reviewed line in edges_test.go, a new
// module one in modules_test.go.
//
// It reads the imports of every Go file, whatever its build tags, so that an
// edge cannot hide on another operating system; what is linked it asks the go
// command. It exports nothing.
package depcheck
