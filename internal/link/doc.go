// Package link dials mutually authenticated TLS connections and frames messages
// on them: what gossip between gateways and the health streams of node proxies
// have in common.
//
// It promises that every wait of a dial is bounded, that nobody but the
// expected identity answers, and that a frame beyond its limit is refused
// before memory is spent on it. It knows nothing of what the frames carry.
package link
