// Package podns finds the network namespaces of pods and opens sockets in them, for a
// process that stays in its own.
//
// It promises: a socket that it opens is in the namespace that was asked for or is not
// opened at all; no goroutine of the caller is ever in another namespace than the process; a
// namespace is kept alive by nobody but an open Namespace, until Close; and that of a
// pod is the one its oldest process is in, whatever later ones of it have made.
//
// It knows nothing of meshes, rules or ports. Linux only.
package podns
