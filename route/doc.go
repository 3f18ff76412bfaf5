// Package route answers where a connection may go: from one snapshot of the
// mesh and one flow to a plan that names the candidates, and for each who must
// answer. The gateway asks the same package what an authority exports, the
// destination node proxy which local port it means.
//
// It promises that a gateway is no open relay (only a hostname of a global
// service with members on its own network is exported), that a pod of another
// network is never reached by its address, and that whatever is not ready or is
// terminating is never offered. Each refusal is an [*Error] with a [Kind].
//
// It is pure and safe for concurrent use. It does not know health or load and
// does not choose: packages health and balance do.
package route
