// Package healthstream is the stream between a node proxy ([Client]) and each
// gateway of its own network ([Server]): reports go up, summaries come down,
// the full state first and every edge at once.
//
// It promises that nothing an end sends or fails to send harms anybody else:
// what waits for a slow reader coalesces and is bounded, silence ends a stream,
// and what is malformed or foreign is counted and dropped. It does not listen:
// the gateway's listener hands connections over.
package healthstream
