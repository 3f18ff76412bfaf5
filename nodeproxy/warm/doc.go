// Package warm runs the warm sets of a node proxy: it has opened in the background
// what they ask for, tells them what came of it, and has retired what they end.
//
// It promises that nobody waits for the background, that at most Config.Opening
// sessions are being opened at once over all sets, that every session that was
// opened for a set is retired exactly once, and that a set which nobody uses ends
// with all it has. What a session is, and how one is opened, is its owner's affair.
package warm
