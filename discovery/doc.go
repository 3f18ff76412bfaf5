// Package discovery turns plain records (what a file, Kubernetes or xDS says)
// into one validated, immutable [mesh.Snapshot], and keeps the current one in a
// [Store].
//
// It promises that a snapshot is built from a whole description or not at all:
// any [Problem] means no snapshot, and every problem names field, value and
// remedy. Defaults are filled in here and nowhere else.
//
// It touches nothing: no file, no clock, no goroutine. Sources live in its
// children (discovery/file).
package discovery
