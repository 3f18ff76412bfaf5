// Package federation holds what the members of a mesh tell each other about
// health: records, who may write them, how they merge, and their wire form.
//
// It promises that merging is commutative, associative and idempotent: members
// that have received the same records in any order, any number of times,
// agree. It promises that a record never looks younger than it is: ages only
// grow, on the way and while they are kept. Records carry durations, never
// wall-clock times. Silence decays to "unknown", which callers treat as
// usable; it never freezes a belief and never means "all bad".
//
// It is pure: time is an argument, and there is no goroutine, no I/O and no
// cryptography here. Packages federation/gossip and federation/healthstream sign
// and send records, federation/peer keeps them.
package federation
