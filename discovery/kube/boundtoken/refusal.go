package boundtoken

import (
	"errors"
	"fmt"
)

// Reason is why a token does not count; one of a closed set.
type Reason string

// The reasons.
const (
	Malformed     Reason = "malformed"   // it is no token of a service account
	NotBound      Reason = "not_bound"   // it is bound to no pod
	WrongAudience Reason = "audience"    // it is for somebody else
	WrongAccount  Reason = "account"     // it is of a service account that nobody asks for
	Expired       Reason = "expired"     // its time is over, or not yet there
	Unsigned      Reason = "signature"   // no key of this cluster has signed it
	Denied        Reason = "denied"      // the API server does not accept it
	WrongPod      Reason = "pod"         // its pod does not live, or is another one
	WrongNode     Reason = "node"        // its pod is on another node
	Limited       Reason = "limited"     // its address has shown too many that nobody can verify
	Unavailable   Reason = "unavailable" // nobody can tell now
)

// Reasons are all of them.
var Reasons = []Reason{Malformed, NotBound, WrongAudience, WrongAccount, Expired, Unsigned, Denied, WrongPod, WrongNode, Limited, Unavailable}

// Refusal says why a token does not count.
type Refusal struct {
	Reason Reason
	Err    error
}

func (r *Refusal) Error() string { return r.Err.Error() }
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(why Reason, format string, args ...any) error {
	return &Refusal{why, fmt.Errorf(format, args...)}
}

// ReasonOf is that of an error of this package.
func ReasonOf(err error) Reason {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return Unavailable
}
