// Package gateway is the east-west gateway of one network: it ends outer
// tunnels, chooses a healthy pod for each, and forwards bytes that it cannot
// read. It also tells its own node proxies what it knows of other networks,
// learns from them what only they can see, and gossips the sum.
//
// It promises: an authority that names no exported service of its own network
// goes nowhere (no open relay); one outer stream is one connection to one pod;
// a pod that does not answer at its address is tried elsewhere before the
// client notices anything; losing gossip or node streams changes what it knows,
// never whether it forwards.
//
// It does not look inside the inner tunnel, and it never judges an application
// itself: that is the witness beside the application (package nodeproxy).
package gateway
