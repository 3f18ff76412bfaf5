// Package flow decides about the flow of one session: how large windows and queues
// are, what counts as bulk and as interactive, and who delivers. Its functions take
// the time, the round trip and the limits as arguments and touch nothing.
//
// Each heuristic can be turned off for diagnosis; see docs/flow-control.md for what
// they do together.
package flow
