// Package standing holds what one process knows of each thing that it may choose
// (a pod's port, a gateway, a share of a service): how many connections it has
// open there, its own evidence of whether it works, and since when and why it is
// out. Both pickers keep their books here and explain their choices in its words.
//
// It promises that a thing of which nothing bad is known costs no lock to begin
// and end a connection at, and that whoever watches a [Cell] is told after every
// change of what it says.
//
// It is pure: time and randomness are arguments. [Book] and [Cell] are safe for
// concurrent use.
package standing
