// Package controller is isthmus-controller: the one process of a cluster that writes to its
// API server. It imports what other networks export, gives imported services their virtual
// addresses, and says at the objects themselves what is wrong with them.
//
// Of several only the leader writes ([Lease]); all of them follow what there is, so that
// another one can take over at once. It hears of exports from the gateways of its own
// network and judges them by the keys of the others, as node proxies do. What is to be
// written, controller/imports and controller/vip decide; discovery/kube/owned writes it.
//
// It promises that nothing is taken back because it is not known now: without gateways,
// or without the API server, everything stays as it is.
package controller
