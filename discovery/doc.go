// Package discovery turns plain records (what a file, Kubernetes or xDS says)
// into immutable [mesh.Snapshot]s, one change after the other, and keeps the
// current one in a [Store], which tells its readers what changed.
//
// It promises that a snapshot depends on the records alone, not on the order in
// which they came; that what cannot be used is left out, object by object, and is
// a [Problem] with field, value and remedy; and that everything else goes on.
// Defaults are filled in here and nowhere else.
//
// It touches nothing: no file, no clock, no goroutine. Sources live in its
// children (discovery/file).
package discovery
