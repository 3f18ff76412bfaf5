// Package damping holds endpoints back that flap, and not those that fail for
// the first time.
//
// After the n-th ejection within memory the success of a probe is held back for
// 0, 1, 2, 4 … 60 s ([Penalty]); each quiet spell of max(10 s, last penalty)
// forgets one ejection. Of what is held back only as much counts as leaves half
// of a share ([Held]), and whoever answers goes before anybody sick.
//
// It is pure: time is an argument. Not safe for concurrent use.
package damping
