// Package gossip joins the gateways of all networks: hashicorp/memberlist over
// a transport of ours, which runs inside mutually authenticated TLS on the
// gateways' own port. Records travel in envelopes that their origin has
// signed; relays pass them on unchanged. Gateways alone link it.
//
// It promises that nothing a peer sends or fails to send harms anybody else:
// every queue and table is bounded, and what is malformed or foreign is counted
// and dropped. It does not listen: the gateway's listener hands connections
// over. What comes in goes to a ledger of package federation/peer.
package gossip
