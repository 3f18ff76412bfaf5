//go:build !isthmus_debug

package hbone

// debugChecks is on in builds with the tag isthmus_debug.
const debugChecks = false
