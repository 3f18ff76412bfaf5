package kube

import (
	"fmt"

	"github.com/isthmus-mesh/isthmus/discovery"
)

// faults are what is wrong with one object, in the words of Kubernetes.
type faults []discovery.Problem

// out notes that value at field is wrong and the object is not used.
func (f *faults) out(c discovery.Cause, field, value, format string, args ...any) {
	f.note(true, c, field, value, format, args...)
}

// drop notes that value at field is wrong and counts for nothing.
func (f *faults) drop(c discovery.Cause, field, value, format string, args ...any) {
	f.note(false, c, field, value, format, args...)
}

// maxFaults bounds what is said of one object: whoever mends the first finds the rest.
const maxFaults = 16

func (f *faults) note(out bool, c discovery.Cause, field, value, format string, args ...any) {
	if len(*f) >= maxFaults && !out {
		return
	}
	const limit = 80
	if r := []rune(value); len(r) > limit {
		value = string(r[:limit]) + "…"
	}
	*f = append(*f, discovery.Problem{Out: out, Cause: c, Field: field, Value: value, Message: fmt.Sprintf(format, args...)})
}

// label is the field of a label.
func label(name string) string { return "metadata.labels[" + name + "]" }

// annotation is the field of an annotation.
func annotation(name string) string { return "metadata.annotations[" + name + "]" }
