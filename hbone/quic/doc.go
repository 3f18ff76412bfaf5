// Package quic carries outer tunnels over QUIC: HTTP/3 CONNECT (RFC 9114 §4.4), one QUIC
// stream for each CONNECT, so that a lost packet delays one inner session only.
//
// A QUIC connection is given to package hbone as a transport. Behind it an in-memory
// session ([hbone.Pipe]) translates each CONNECT to an HTTP/3 request and back. Limits,
// authorization, GOAWAY, drain and failure handling are in [hbone.Session].
//
// It promises that
//   - peers prove their identity by mutual TLS 1.3; there is no 0-RTT, since a repeated
//     CONNECT would dial again;
//   - a half-close, a reset with its code, an informational response and data ahead of the
//     response arrive as over TCP, and data before a reset is not lost;
//   - a receiver that does not read stops its sender: what lies in between is bounded by
//     the windows of the stream;
//   - a session closes with its QUIC connection, and keeps it open after its own end for no
//     longer than over TCP: a minute for a peer that does not read, 10 s for one that is dead.
//
// It does not count for the memory budget what waits for a lost packet: a connection holds as much
// as its window. It has no stateless reset (RFC 9000 §10.3): no key of one process alone outlives it, and a
// key that replicas share lets others reset connections (§21.11). A peer notices a restart at the same
// address by PING. Empty DATA frames and unknown frames of a request are not counted, as they provoke nothing.
//
// Peers of this project recognize each other by a setting. Between them PING, the
// withdrawal of a CONNECT and the orderly close are frames of the control stream. Other peers
// ignore these frames by RFC 9114 §9. They receive at most a PING, before their SETTINGS. A connection to one closes
// when nothing was sent for 2 s or six probe timeouts, since quic-go does not report what was acknowledged. What such a
// peer does not read within that time is lost.
//
// HTTP/3 is written here, on quic-go alone. The client of quic-go's package http3 closes a
// connection when the last request has completed after GOAWAY. That drops bytes that are not
// acknowledged yet.
package quic
