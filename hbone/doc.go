// Package hbone is the tunnel protocol: HTTP/2 CONNECT streams inside mutual
// TLS, as ztunnel and Envoy speak them, on a session layer of our own.
//
// A [Session] is one TLS + HTTP/2 connection, a [Stream] is one CONNECT on it
// and behaves as a net.Conn with true half-close in both directions. A session
// runs on a [Transport]: crypto/tls over TCP for an outer tunnel, crypto/tls
// over a Stream for an inner one. Package hbone/pool shares client sessions, [Relay]
// joins a stream to an application connection.
//
// It promises that
//   - control frames (PING, SETTINGS, WINDOW_UPDATE, RST_STREAM, GOAWAY) never
//     wait behind queued data, and the reading goroutine never blocks in a write;
//   - one stream that is not read neither stops nor slows its siblings, as long
//     as its window (a quarter of the connection's) is not the last credit;
//   - a small message does not stand in line behind the large writes of other
//     streams, and these do not starve for it;
//   - after a peer's RST_STREAM not one more frame leaves on that stream, queued
//     ones included, and everything already received is taken in before an
//     END_STREAM is passed on;
//   - memory per session is bounded whatever the peer sends.
//
// It will not dial, listen, choose endpoints, or judge identities: it is handed
// connections and TLS configurations, and reports who answered.
package hbone
