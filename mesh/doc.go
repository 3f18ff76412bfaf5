// Package mesh holds the words that every other package speaks: networks,
// workloads, services, endpoints, localities and gateways, and the immutable
// [Snapshot] that puts them together.
//
// It promises that a Snapshot never changes once built: readers load it once
// per connection and may keep it for as long as they like. It decides nothing
// and touches nothing: no I/O, no clock, no goroutine.
package mesh
