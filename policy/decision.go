package policy

import (
	"fmt"
	"strings"
)

// Verdict is how a decision came about.
type Verdict uint8

// The verdicts, of which the zero one allows: NoPolicy.
const (
	NoPolicy   Verdict = iota // no ALLOW policy is for the workload, and no DENY policy matches
	Allowed                   // an ALLOW policy matches
	Denied                    // a DENY policy matches
	NotAllowed                // ALLOW policies are for the workload, and none matches
	PlainText                 // a PeerAuthentication is STRICT, and there is no identity
)

// NoRule is the Rule of a Decision that no rule has made.
const NoRule = -1

// Decision says whether a connection may be, and which policy says so.
type Decision struct {
	Verdict Verdict
	Policy  Name   // that has decided; none of NoPolicy and NotAllowed
	Rule    int    // its rule, counted from 0 as in spec.rules; NoRule: none
	Among   []Name // of NotAllowed: the ALLOW policies; do not modify
}

// Allowed reports whether the connection may be.
func (d Decision) Allowed() bool { return d.Verdict == NoPolicy || d.Verdict == Allowed }

// maxNamed is how many policies a sentence names.
const maxNamed = 3

// By names the policy that has decided, or those of which one would have had to match; "" if
// none is for the workload.
func (d Decision) By() string {
	if d.Verdict != NotAllowed {
		return d.Policy.String()
	}
	return FirstOf(d.Among)
}

// FirstOf names the first three of some policies, and how many others there are.
func FirstOf(list []Name) string {
	var names []string
	for _, n := range list[:min(len(list), maxNamed)] {
		names = append(names, n.String())
	}
	if more := len(list) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// String says it in words, for example "denied by AuthorizationPolicy demo/no-batch, rules[0]".
func (d Decision) String() string {
	switch d.Verdict {
	case Allowed:
		return fmt.Sprintf("allowed by %s, rules[%d]", d.Policy, d.Rule)
	case Denied:
		return fmt.Sprintf("denied by %s, rules[%d]", d.Policy, d.Rule)
	case NotAllowed:
		return "denied: no rule of an ALLOW policy matches: " + d.By()
	case PlainText:
		return fmt.Sprintf("denied by %s: mode STRICT, and the connection is not mutual TLS", d.Policy)
	}
	return "allowed: no ALLOW policy is for the workload, and no DENY policy matches"
}
