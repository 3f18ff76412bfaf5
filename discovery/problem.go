package discovery

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Cause is why something is a Problem, from a closed set for metrics.
type Cause uint8

// The causes.
const (
	CauseValue       Cause = iota // a word or number that means nothing here
	CauseMissing                  // something required is not there
	CauseConflict                 // another object has it
	CauseReference                // it names an object that is not there
	CauseUnsupported              // it means something that is not done
)

var causeNames = [...]string{"value", "missing", "conflict", "reference", "unsupported"}

// Causes lists every cause.
func Causes() []Cause {
	return []Cause{CauseValue, CauseMissing, CauseConflict, CauseReference, CauseUnsupported}
}

func (c Cause) String() string { return causeNames[c] }

// MarshalText writes c as String.
func (c Cause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Problem is one reason why an object, or a part of it, is not used.
type Problem struct {
	Object  Key    // whose record is wrong; of no kind if it is the mesh itself
	Out     bool   // the object is not used at all; else only what stands at Field is not
	Cause   Cause  // for metrics
	Path    []any  // keys (string) and indices (int) from the record, or from the root of the Config, on
	Field   string // Path for people: addresses[0], or workloads[3].addresses[0]
	Value   string // what stands there; "" if nothing does
	Message string // what is wrong with it, and the remedy
	Refers  string // the list that it should be in, if what is wrong is that it is not: networks or services
}

// Error returns field, value, what is wrong and the remedy in one line.
func (p Problem) Error() string { return p.Field + ": " + p.Said() }

// Said is Error without the field.
func (p Problem) Said() string {
	if p.Value == "" {
		return p.Message
	}
	return strconv.Quote(p.Value) + ": " + p.Message
}

func (p Problem) equal(o Problem) bool {
	return p.Object == o.Object && p.Out == o.Out && p.Cause == o.Cause && p.Field == o.Field && p.Value == o.Value && p.Message == o.Message
}

// sortProblems sorts by object; those of one object stay in the order in which it
// was read.
func sortProblems(list []Problem) {
	slices.SortStableFunc(list, func(a, b Problem) int {
		return a.Object.compare(b.Object)
	})
}

// fieldOf renders a path.
func fieldOf(path []any) string {
	var b strings.Builder
	for _, p := range path {
		switch p := p.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", p)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			fmt.Fprint(&b, p)
		}
	}
	return b.String()
}

// at is a place in a record; below makes a longer one.
type at []any

func (a at) below(steps ...any) at { return append(a[:len(a):len(a)], steps...) }

// reader reads one record.
type reader struct {
	names    *names
	object   Key
	problems []Problem
}

// out notes that value at path is wrong and the object cannot be used.
func (r *reader) out(c Cause, path at, value any, format string, args ...any) {
	r.note(true, c, path, value, format, args...)
}

// drop notes that value at path is wrong and counts for nothing.
func (r *reader) drop(c Cause, path at, value any, format string, args ...any) {
	r.note(false, c, path, value, format, args...)
}

func (r *reader) note(out bool, c Cause, path at, value any, format string, args ...any) {
	text := ""
	if value != nil {
		text = shorten(fmt.Sprint(value))
	}
	r.problems = append(r.problems, Problem{Object: r.object, Out: out, Cause: c, Path: path, Field: fieldOf(path), Value: text, Message: fmt.Sprintf(format, args...)})
}

// unusable reports whether the object is out.
func (r *reader) unusable() bool {
	return slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Out })
}

// unlisted notes that value at path is not in a list where it should be.
func (r *reader) unlisted(out bool, path at, value any, list, format string, args ...any) {
	r.note(out, CauseReference, path, value, format, args...)
	r.problems[len(r.problems)-1].Refers = list
}

// shorten keeps an error line one line.
func shorten(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}
