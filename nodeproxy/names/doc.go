// Package names answers what pods ask of DNS, in the place of their own resolver: names of
// the mesh from a snapshot of it, and everything else as that resolver answers it, byte for
// byte.
//
// Which names are whose:
//
//   - Names under the zones of the mesh ([Zones]) are answered here alone. What no network has
//     does not exist (NXDOMAIN), and where that cannot be known yet the answer is SERVFAIL:
//     resolvers ask again, and go on to nothing else.
//   - A name of the mesh with one of the pod's search domains behind it does not exist. With
//     ndots:5 resolvers ask for such names first; answered here, none of them reaches a DNS
//     server, nor the wildcard record that the last search domain may have.
//   - <svc>.<ns>.svc.DOMAIN belongs to the cluster, whose DNS is queried first. It denies a service
//     that only other networks have, and that denial alone is replaced. DOMAIN is that of the
//     cluster (Config.Domain, else the search list of the pod) or cluster.local, by which networks
//     name services to each other.
//   - Any other hostname of a service that has virtual addresses has these.
//
// A name with a search domain behind it gets no CNAME to the name that was meant, as ztunnel gives: the denial is true whoever keeps it,
// needs nobody to be asked, and leaves what getaddrinfo calls the canonical name as the application wrote it. It costs
// questions that never leave the pod.
//
// Answers say nothing of health: a virtual address is right while the service exists. They
// hold for [TTL], much shorter than an address that was given back belongs to nobody.
//
// It opens no socket of its own: listeners are handed to it, and it dials servers by a function,
// so that all happens in the network namespace of the pod.
package names
