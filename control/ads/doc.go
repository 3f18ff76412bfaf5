// Package ads is the delta variant of Envoy's Aggregated Discovery Service:
// a [Server] for gateways and a [Client] for node proxies. It does not know what
// resources mean. Method, messages and rules are Envoy's, so a stock ztunnel can
// use the server, and the client can use a stock istiod.
//
// # Subscriptions
//
// A resource has a name, aliases and groups. Each of them is a key. A stream
// receives a resource if one of the keys is subscribed, or if the stream is a
// wildcard for its type. So a group brings many resources by one subscription.
// When the last subscribed key of a resource goes, the resource is removed.
//
// A key that names no resource is returned in removed_resources, after the
// resources that have it as an alias or a group. A client therefore always gets
// an answer. Stock ztunnel in on-demand mode needs it for aliases too.
//
// # Order
//
// The server sends types in a fixed order. A later type waits until nothing is
// due of the types before it. Within one type, removals follow additions. A
// stream holds no copies and no history. It holds names of changed resources and
// sends their state of that moment, so changes coalesce while the peer is slow.
//
// Versions are hashes of the content. A client that reconnects, to any server,
// receives only differences.
//
// # Extensions
//
// A resource of type [SyncType] is a barrier. Its name is chosen by the client.
// The server sends it after everything that was due when it was subscribed. The
// type [SourceType] describes the server. The client connects to two servers and
// subscribes at one, the active source. Known resources stay valid without a
// server. A server that does not send [SourceType] is taken for a stock one:
// [ClientConfig].Quiet replaces the barrier.
package ads
