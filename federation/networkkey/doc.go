// Package networkkey proves who speaks in the federation.
//
// A network is a key: an Ed25519 [Private] that its operators keep and whose
// [Public] half other networks list in a file of theirs. With it a network
// certifies the key that each of its gateway instances draws at its start, for
// at most a day ([MaxLifetime]); the instance signs what it says with its own
// key ([Instance]), whatever trust domains and CAs there are. While a network
// key is rotated two of one network are accepted.
//
// An instance's name is a hash of its key, so a certificate cannot give one
// instance the name of another. Clocks only end certificates; they order
// nothing.
//
// It is pure: randomness, keys and time are arguments. Folder keyfile reads and
// writes the files.
package networkkey
