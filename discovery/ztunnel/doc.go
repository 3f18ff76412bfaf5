// Package ztunnel says what a stock ztunnel on one node must know of our mesh:
// its local configuration (LOCAL_XDS_PATH), from the snapshot that our own
// processes read.
//
// It promises that the same snapshot always gives the same bytes, and that no
// address of another network is in them but those of its gateways. It leaves
// out what ztunnel reads only from a control plane: waypoints and policies.
package ztunnel
