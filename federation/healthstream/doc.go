// Package healthstream is the stream between a node proxy ([Client]) and each
// gateway of its own network ([Server]): reports about the pods of its node go up,
// what is known of the services that its pods use comes down, the whole first and
// every edge at once.
//
// A gateway believes of a pod its node's proxy alone, which has proved to a
// [Prover] which node it is. A stream replaces what the same instance of that node
// proxy said before; of two instances that are attached the one that does not drain
// counts. What a gateway holds as out is named when a node proxy attaches, and
// stays until somebody has said something of each port: an empty first report
// readmits nobody. No clock of a sender orders anything.
//
// A node proxy is told of services that it has asked for and of nothing else: with
// nothing changing there are beats alone. When no gateway is there, what is known
// holds for a minute ([ledger.Lapse]); then health is unknown, and exports hold on.
//
// It promises that nothing an end sends or fails to send harms anybody else: a
// stream that is behind holds no queue, silence ends a stream, everything is
// bounded, and what is malformed or foreign is counted and dropped. It does not
// listen: the gateway's listener hands connections over.
package healthstream
