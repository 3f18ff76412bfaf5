// Package policy decides who may connect to a workload: Istio's AuthorizationPolicy and
// PeerAuthentication, as far as they speak of connections (layer 4), with the semantics that
// istiod and ztunnel give them. [Parse] reads them as a file or the API server has them, a
// [Set] holds those that are in force, and the [Effective] policies of one workload decide.
//
// What always holds:
//
//   - A PeerAuthentication in mode STRICT denies what has no identity. Then a DENY policy that
//     matches denies, then an ALLOW policy that matches allows. Where no ALLOW policy is for the
//     workload what is left is allowed, otherwise it is denied.
//   - The order in which policies were given decides nothing but which of several is named.
//   - A DENY policy more never allows anything. An ALLOW policy more allows nothing that a DENY
//     policy denies.
//   - A dry-run policy changes no decision.
//   - What Parse does not understand never allows anything: a rule of an ALLOW policy that it is
//     in never matches, and of a DENY policy it counts as matched. So it is with what speaks of
//     HTTP, which nobody sees here: as Istio does for TCP. A PeerAuthentication that it is in is
//     STRICT on all ports.
//   - A connection without identity has no principal, namespace or service account; nothing that
//     is to be one of these matches, and everything that is not to be does.
//   - cluster.local before the first slash of a principal is the trust domain of the mesh, and no other one. [ParseIn] puts
//     it there, for whoever decides by a policy or passes its rules on.
//
// It is pure and knows nothing of networks: for a client of another one, the source address of
// a connection is that of the gateway. It does not know waypoints, so it leaves out policies with
// targetRefs, as ztunnel does, and those whose action is AUDIT or CUSTOM.
package policy
