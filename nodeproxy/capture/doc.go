// Package capture leads connections of a pod to sockets of its node proxy in the pod's own
// network namespace: rules of nftables, in tables of their own there, and what an
// accepted connection was meant for. And it has an application see the address of its client: rules
// by which its answers to that address come back to the node proxy's socket.
//
// It promises: rules are replaced in one transaction, so that no packet meets half of them,
// and setting them again changes nothing; connections to a virtual address are
// refused when nobody listens, and never leave the pod in plain text; names are
// resolved as without it as soon as the process that answers has ended, however that
// ended, by all who ask from a port that they have not asked from in the last half
// minute (the kernel remembers where those were led, the other way round too); what else
// is in the pod's tables is not touched.
//
// It does not find namespaces (package podns), accept anything or know what an address
// means. Linux only.
package capture
