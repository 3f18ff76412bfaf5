// Package picker chooses where a node proxy sends a connection, and keeps what
// that is decided by: its own evidence of pods, gateways and other networks'
// shares, and what owners say of theirs.
//
// [Picker.Resolve] finds the [Destination] of a flow, [Picker.Pick] one place of
// it, [Picker.Opened] and [Picker.Done] take in what came of it and return the
// edges. [Picker.Explain] says why each candidate is in or out.
//
// It promises, and a test compares it with a scan by these rules under random
// schedules, that
//   - nobody is chosen who is known to be sick while somebody healthy of the same
//     rank is there and was not tried;
//   - somebody is chosen as long as anybody is left who was not drained;
//   - of every Pick that is Done nothing stays open;
//   - an edge is returned only when something went out or came back;
//   - the weights of one destination are a whole: the parts of its candidates sum
//     to 1.
//
// A choice takes time in proportion to the logarithm of the number of pods, holds
// no lock but those of its destination, and allocates nothing as long as nothing
// is wrong.
//
// It is pure: clock, randomness and what federation says are arguments. It is safe
// for concurrent use.
package picker
