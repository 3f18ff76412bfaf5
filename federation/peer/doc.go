// Package peer holds what a process has been told by others: [Ledger] is the
// table that federation/gossip and federation/healthstream write and the data
// path reads; a [Subscription] says what has changed in it. [Metrics] counts
// what became of messages, [Reason] says why one was refused.
//
// It promises that memory is bounded, that a slow reader loses no change, and
// that losing all peers leaves a ledger that fades to unknown. It will not
// decide what an ejection means, and opens no connection.
package peer
