// Package antientropy decides which messages gateways send each other so that
// all of them come to believe what every live instance says.
//
// A [Node] is one gateway: its [Publisher], which signs what the gateway itself
// says, the ledger of what it believes, and an [Exchange] for each peer.
// Statements go to every peer; those with changes are sent again until they are
// acknowledged, and news is passed on to peers of the own network and to a few
// others, so that gateways that cannot reach each other hear of it. Peers
// compare digests, of constant size for each instance; what is missing is asked
// for by the hashes of its buckets and comes in chunks of at most 256 KiB,
// proven by its origin's signature, whoever sends it.
//
// It is pure: it neither sends nor waits. Whoever owns a Node hands in messages
// and time, and sends what comes out; packets may be lost, repeated and
// reordered. Not safe for concurrent use.
package antientropy
