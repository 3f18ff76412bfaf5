// Package cnisocket is how the CNI plugin of a node tells its node proxy which network namespace a pod is
// given, before anything of the pod runs: one request and one reply on a connection of a unix socket, with the
// namespace itself as a file descriptor, so that the node proxy needs no path of the node.
//
// It promises: only root is heard; what a request may cost is bounded in number, size and time; a request ends with its
// connection; and a node proxy that starts takes the socket's name over from the one before without a moment in which
// nobody has it.
//
// It does not know what a node proxy does with the namespace. Linux only.
package cnisocket
