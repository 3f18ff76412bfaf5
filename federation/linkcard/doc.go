// Package linkcard has what one network tells another to be linked with it: the link card,
// which holds nothing secret, and what becomes of the other's files by it. It promises
// that linking twice is linking once, that what operators have written at a network in the
// file of known networks stays, and that a card never replaces the keys of a network that
// is linked by others: two clusters may have one name by mistake.
//
// It reads and writes no file and asks no cluster.
package linkcard
