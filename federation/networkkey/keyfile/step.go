package keyfile

import (
	"fmt"
	"time"
)

// Step is how far the rotation of a network's key is.
type Step uint8

const (
	Settled  Step = iota // one key
	Offered              // the next key is listed beside the one that signs
	Replaced             // the next key signs, and the one before is listed still
)

// String is one word.
func (s Step) String() string { return [...]string{"settled", "offered", "replaced"}[min(s, Replaced)] }

// Step returns how far the rotation of d is.
func (d Dir) Step() Step {
	switch {
	case d.Next != nil || d.NextError != nil:
		return Offered
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
	case Offered:
		return fmt.Sprintf("the next key is listed; when all other networks have both: isthmus network rotate --dir %s --finish", d.Path)
	case Replaced:
		return fmt.Sprintf("the next key signs; the old one is listed for gateways that it has certified; not before %s: isthmus network rotate --dir %s --forget-old", d.ForgetFrom().Format(time.RFC3339), d.Path)
	}
	return ""
}
