package hbone

import (
	"crypto/sha256"
	"encoding/hex"
)

// One address may stand for several servers, the replicas behind a load balancer. A
// client that knows their names learns in the TLS handshake which one has answered, before
// it sends anything: it offers the protocol of each replica that it knows, [AnyReplica] and
// "h2", and the server chooses the first of these that is its own. What follows is HTTP/2
// in each case. Stock peers offer, and choose, "h2" alone.

// AnyReplica is chosen by a replica that the client does not know: it has offered no
// protocol of its name.
const AnyReplica = "isthmus-replica"

// ReplicaProtocol is the ALPN protocol of the server called name. A hash of the name is as
// long for all and tells a bystander nothing but which replica it is.
func ReplicaProtocol(name string) string {
	sum := sha256.Sum256([]byte("isthmus replica\x00" + name))
	return AnyReplica + "/" + hex.EncodeToString(sum[:8])
}

// ServerProtocols are what the server called name takes, in its order of preference.
func ServerProtocols(name string) []string {
	return []string{ReplicaProtocol(name), AnyReplica, "h2"}
}

// maxReplicas is how many replicas a client asks for by name: 33 bytes of its hello each.
const maxReplicas = 32

// ClientProtocols are what a client offers that wants one of names. Of more than 32 the
// first are asked for.
func ClientProtocols(names ...string) []string {
	out := make([]string, 0, len(names)+2)
	for _, n := range names[:min(len(names), maxReplicas)] {
		out = append(out, ReplicaProtocol(n))
	}
	return append(out, AnyReplica, "h2")
}
