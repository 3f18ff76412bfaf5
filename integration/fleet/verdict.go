//go:build linux

package fleet

import (
	"fmt"
	"io"
)

// Exit codes of a program that loads a fleet; those of isthmus drill.
const (
	ExitHeld         = 0
	ExitBroken       = 1
	ExitUsage        = 2
	ExitStart        = 3 // it could not do its work
	ExitInconclusive = 4
)

// MaxOthers is how many processors others may use before a figure that depends on
// time is in doubt.
const MaxOthers = 0.2

// Quiet is what to do about it.
const Quiet = "end what else runs on this machine (top shows it) and run it again"

// Verdict is what such a program found.
type Verdict struct {
	Held   string   // what held, if all did
	Broken []string // bounds that are broken, whatever else the machine did
	Doubts []string // why nothing can be said, each with a remedy
	Logs   string   // folder of the logs; empty if they are gone
}

// Code is the exit code.
func (v *Verdict) Code() int {
	switch {
	case len(v.Broken) > 0:
		return ExitBroken
	case len(v.Doubts) > 0:
		return ExitInconclusive
	}
	return ExitHeld
}

// maxCauses is how many causes are listed.
const maxCauses = 20

// Print lists all causes if there are several, and ends with one line: the verdict
// and the first cause.
func (v *Verdict) Print(w io.Writer) {
	causes := append(v.Broken[:len(v.Broken):len(v.Broken)], v.Doubts...)
	fmt.Fprintln(w)
	if len(causes) > 1 {
		for i, c := range causes {
			if i == maxCauses {
				fmt.Fprintf(w, "  … and %d more\n", len(causes)-i)
				break
			}
			fmt.Fprintln(w, " ", c)
		}
	}
	if v.Logs != "" {
		fmt.Fprintln(w, "logs are in", v.Logs)
	}
	line := "HELD: " + v.Held
	switch v.Code() {
	case ExitBroken:
		line = "BROKEN: " + causes[0]
	case ExitInconclusive:
		line = "INCONCLUSIVE: " + causes[0]
	}
	if n := len(causes); n > 1 {
		line += fmt.Sprintf(" (the first of %d causes, listed above)", n)
	}
	fmt.Fprintln(w, line)
}
