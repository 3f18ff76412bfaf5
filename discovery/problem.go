package discovery

import (
	"fmt"
	"strconv"
	"strings"
)

// Problem is one reason why a Config is no mesh.
type Problem struct {
	Path    []any  // keys (string) and indices (int) from the root of the Config
	Field   string // Path for people: workloads[3].addresses[0]
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

// at is the place in the Config that is being read; below makes a longer one.
type at []any

func (a at) below(steps ...any) at { return append(a[:len(a):len(a)], steps...) }

// problem notes that value at path is wrong.
func (b *builder) problem(path at, value any, format string, args ...any) {
	text := ""
	if value != nil {
		text = shorten(fmt.Sprint(value))
	}
	b.problems = append(b.problems, Problem{Path: path, Field: fieldOf(path), Value: text, Message: fmt.Sprintf(format, args...)})
}

// missing notes that value at path is not in a list where it should be.
func (b *builder) missing(path at, value any, list, format string, args ...any) {
	b.problem(path, value, format, args...)
	b.problems[len(b.problems)-1].Refers = list
}

// shorten keeps an error line one line.
func shorten(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}
