package keyfile

// Step is how far the rotation of a network's key is.
type Step uint8

const (
	Settled  Step = iota // one key
	Offered              // the next key is listed beside the one that signs
	Replaced             // the next key signs, and the one before is listed still
)

// String is one word.
func (s Step) String() string { return [...]string{"settled", "offered", "replaced"}[min(s, Replaced)] }

// Next says what comes next; empty: nothing.
func (s Step) Next() string {
	switch s {
	case Offered:
		return "the next key is listed; when all other networks have both: isthmus network rotate --finish"
	case Replaced:
		return "the next key signs; when all gateways were certified anew, 24 h later: isthmus network rotate --forget-old"
	}
	return ""
}

// Step returns how far the rotation of d is.
func (d Dir) Step() Step {
	switch {
	case d.Next != nil:
		return Offered
	case d.Old != nil:
		return Replaced
	}
	return Settled
}
