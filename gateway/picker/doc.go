// Package picker chooses which pod of its own network a gateway forwards to, and
// keeps what that is decided by: what this gateway has seen of the pods' node
// proxies (hops), what the witnesses beside them say of their ports, and which of
// them owe an answer.
//
// It speaks the language of nodeproxy/picker: [Picker.Resolve] finds the [Service]
// that is asked for, [Picker.Pick] one pod of it, [Picker.Opened] and [Picker.Done]
// take in what came of it and return the edges, [Picker.Explain] says why each pod is
// in or out.
//
// It promises, and a test compares it with a scan by these rules under random
// schedules, that
//   - nobody is chosen who is known to be sick, while somebody healthy is there that
//     this connection may have;
//   - somebody is chosen as long as anybody is left, unless the client wants none but
//     a healthy one;
//   - of every Pick that is Done nothing stays open;
//   - an edge is returned only when a hop went out or came back;
//   - the parts of the pods of one service sum to 1.
//
// A choice takes time in proportion to the logarithm of the number of pods, holds no
// lock but that of its service, and allocates nothing.
//
// It is pure: clock, randomness and what others say are arguments. It is safe for
// concurrent use.
package picker
