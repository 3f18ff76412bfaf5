// Package localfault tells failures of this host apart from failures of whoever
// was dialled: a process that has no file descriptor left cannot connect to
// anybody, and nobody is ill for it.
package localfault

import (
	"errors"
	"slices"
	"syscall"
)

// errnos are what socket(2), bind(2) and connect(2) return before anything was
// sent to the peer. A network or host that cannot be reached is not among them:
// that may be the peer's.
var errnos = []syscall.Errno{
	syscall.EMFILE,        // the process has all the descriptors that it may have
	syscall.ENFILE,        // so has the host
	syscall.ENOBUFS,       // no memory for sockets
	syscall.ENOMEM,        // no memory
	syscall.EADDRNOTAVAIL, // no source port is left, or the source address is not ours
	syscall.EPERM,         // a firewall or a security module of this host
	syscall.EACCES,        // the same, or a route of type prohibit
}

// Is reports whether err, of a dial, says something about this process or its
// host and nothing about the peer.
func Is(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && slices.Contains(errnos, errno)
}
