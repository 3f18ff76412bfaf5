// Package peer holds what gossip and health streams have in common: [Metrics]
// counts what became of messages, [Reason] says why one was refused. It opens no
// connection.
package peer
