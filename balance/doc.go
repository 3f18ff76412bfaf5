// Package balance chooses one of several candidates: first the preferred
// bucket that still has somebody healthy in it, then two random choices by
// weight, then the less loaded of the two.
//
// It promises that a bucket counts only if somebody healthy is in it, that
// drained candidates are never chosen, that shares follow weights while
// nobody is busy, and that a choice costs no allocation.
//
// [Pick] looks at each of a handful; an [Index] keeps sums for thousands, and can give
// turns instead of drawing: then nobody is chosen a second time before everybody was about
// once, which matters where each choice is worth many connections.
//
// It is pure: loads, health and random draws are arguments, and only [Draws] is
// safe for concurrent use. It does not know what a candidate is, keeps no state
// about any, and opens nothing.
package balance
