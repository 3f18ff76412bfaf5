package keyfile

import (
	"fmt"
	"time"
)

// Step is how far the rotation of a network's key is.
type Step uint8

const (
	Settled  Step = iota // one key
	Begun                // the next key is made, and not listed
	Lost                 // the next key is listed, and no file has it
	Offered              // the next key is listed beside the one that signs
	Replaced             // the next key signs, and the one before is listed still
)

// String is one word.
func (s Step) String() string {
	return [...]string{"settled", "begun", "lost", "offered", "replaced"}[min(s, Replaced)]
}

// Step returns how far the rotation of d is.
func (d Dir) Step() Step {
	switch {
	case d.Listed || d.NextError != nil:
		return Offered
	case d.Next != nil:
		return Begun
	case d.Lost != nil:
		return Lost
	case d.Old != nil:
		return Replaced
	}
	return Settled
}

// Remaining says what is left to do of the rotation of d; empty: nothing.
func (d Dir) Remaining() string {
	if d.NextError != nil {
		return d.NextError.Error()
	}
	switch d.Step() {
	case Begun:
		return fmt.Sprintf("the next key is made, and not listed: isthmus network rotate --dir %s", d.Path)
	case Lost:
		return fmt.Sprintf("the next key, fingerprint %s, is listed, and no file has it: restore %s (or %s, if it is a key that has signed), or list another in its place: isthmus network rotate --dir %s", d.Lost.Fingerprint(), NextFile, FinishedFile, d.Path)
	case Offered:
		return fmt.Sprintf("the next key is listed; when all other networks have both: isthmus network rotate --dir %s --finish", d.Path)
	case Replaced:
		return fmt.Sprintf("the next key signs; the old one is listed for gateways that it has certified; not before %s: isthmus network rotate --dir %s --forget-old", d.ForgetFrom().Format(time.RFC3339), d.Path)
	}
	return ""
}
