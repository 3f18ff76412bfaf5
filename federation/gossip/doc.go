// Package gossip joins the gateways of all networks: it owns an
// [antientropy.Node], gives it time, and carries its messages as those of a
// memberlist over mutually authenticated TLS connections on the gateways' own
// port. Gateways alone link it.
//
// memberlist says who is a member; a member is an instance. Who may be one, and
// where, is discovery's word: each gateway dials every other and takes what they
// dial. Either end of a connection sends on it, so that one side that
// can dial is enough, and so that two instances of one gateway at one address
// are two peers. What an instance says is believed for its signature, not for
// the connection that it came on; see federation/ledger.
//
// It promises that nothing a peer sends or fails to send harms anybody else:
// every queue and table is bounded, and what is malformed or foreign is counted
// and dropped. It does not listen: the gateway's listener hands connections
// over.
package gossip
