// Package health has the messages of health between gateways and node proxies, and pure functions
// on them.
//
// Down, a [ServiceHealth] is one resource for each port of a service, NAMESPACE/HOSTNAME/PORT: by
// network the numbers of ready and healthy endpoints, the availability through each gateway, and
// the ejected endpoints. A gateway makes it from the merged reports of the network ([FromMerge]). A node proxy
// turns each one, and the one before, into a [View] for its picker. A network that is not listed has unknown
// health: its endpoints count as healthy.
//
// Up, a node proxy reports the health of the pods of its node: a [Request] with [Hello], the full
// state, then transitions by sequence. [Stream] checks that order. No clock of a sender orders anything.
//
// It is pure: the gRPC service, and which of several reports counts, are elsewhere. Of equal health the
// bytes are equal. Everything has bounds, and an [*Error] has field, value and remedy. Unknown causes and
// states of a later version count as ejected.
package health
