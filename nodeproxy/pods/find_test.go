package pods

import (
	"errors"
	"strings"
	"testing"
)

// That pods cannot be looked for at all is a problem while it lasts, and is said once in the log.
func TestPodsThatCannotBeLookedForAreAProblem(t *testing.T) {
	c := &Set{}
	name := func(uid string) string { return uid }
	denied := errors.New("pod u: permission denied")
	if !c.lookedFor(denied) || c.lookedFor(denied) {
		t.Error("it is news twice, or never")
	}
	if got := c.Lacking(name); len(got) != 1 || !strings.Contains(got[0], "pods are not found: pod u: permission denied: give this process") {
		t.Errorf("it says %q", got)
	}
	if c.lookedFor(nil) || len(c.Lacking(name)) != 0 {
		t.Errorf("it is over, and stays: %q", c.Lacking(name))
	}
}
