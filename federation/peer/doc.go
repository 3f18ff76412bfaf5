// Package peer moves federation records between processes and keeps them.
//
// [Federation] joins the gateways of all networks: hashicorp/memberlist over
// a transport of ours, which runs inside mutually authenticated TLS on the
// gateways' own port. Records travel in envelopes that their origin has
// signed; relays pass them on unchanged. [HealthServer] and [HealthClient]
// are the two ends of the stream between a gateway and the node proxies of
// its own network: reports go up, summaries come down.
// [Ledger] is the table that all of them write and the data path reads.
//
// It promises that nothing a peer sends or fails to send harms anybody else:
// every queue and table is bounded, what is malformed or foreign is counted
// and dropped, and losing all peers leaves a ledger that fades to unknown. It
// will not decide what an ejection means; it does not listen, the gateway's
// listener hands connections over.
package peer
