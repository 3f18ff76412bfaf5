// Package damping holds endpoints, and gateways, back that flap, and not those that fail
// for the first time.
//
// After the n-th ejection within memory the success of a probe is held back for
// 0, 1, 2, 4 … 60 s ([Penalty]); each quiet spell of max(10 s, last penalty)
// forgets one ejection. Of what is held back only as much counts as leaves half
// of a share ([Held]), and whoever answers goes before anybody sick.
//
// There is one [Damper] per fact, beside whoever owns it: that of a pod's port is with
// the witness on its node, which says of a port that answers and is held back that it
// is out for [Reason]; those of gateways, and of node proxies that do not answer, are with
// each client. Gateways damp that no further; they know shares, and leave out
// what [Held] allows. The back-off of health.Tracker is no second penalty: it says
// when a connection may try what no probe has answered for, and probes end it early.
//
// It is pure: time is an argument. Not safe for concurrent use.
package damping
