//go:build isthmus_debug

package hbone

// debugChecks has every session check its invariants while it runs.
const debugChecks = true
