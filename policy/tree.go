package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Problem is one thing of an object that counts for nothing, or not for what was meant.
type Problem struct {
	Path    []any // keys (string) and indices (int) from the object on
	Cause   Cause
	Out     bool   // nothing of the object is in force
	Value   string // what stands there; "" if nothing does
	Message string // what is wrong with it, what that means, and the remedy
}

// Cause is why something is a Problem.
type Cause uint8

// The causes.
const (
	BadValue    Cause = iota // a word, number or key that means nothing
	Missing                  // something required is not there
	Unsupported              // it means something that is not done
)

// node is one value of an object, and where it is.
type node struct {
	p    *parser
	path []any
	v    any // nil: nothing is there
}

// parser collects problems. What each of them comes to is said by consequence.
type parser struct {
	problems    []Problem
	consequence string
	own         string   // trust domain of the mesh
	pointing    []string // principals as they are written that it has been put into
}

func (n node) there() bool { return n.v != nil }

func (n node) note(c Cause, value any, format string, args ...any) {
	text := ""
	if value != nil {
		text = shorten(fmt.Sprint(value))
	}
	message := fmt.Sprintf(format, args...)
	if n.p.consequence != "" {
		message += "; until then " + n.p.consequence
	}
	n.p.problems = append(n.p.problems, Problem{Path: n.path, Cause: c, Value: text, Message: message})
}

// shorten keeps a line of a log one line.
func shorten(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "…"
	}
	return s
}

func (n node) below(step, v any) node {
	return node{n.p, append(n.path[:len(n.path):len(n.path)], step), v}
}

// group returns the values below n by their keys. Of nothing it is empty.
func (n node) group() (values map[string]node, ok bool) {
	values = map[string]node{}
	switch v := n.v.(type) {
	case nil:
	case map[string]any:
		for k, x := range v {
			values[k] = n.below(k, x)
		}
	case map[any]any: // of keys that are no text, such as the numbers of ports
		for key, x := range textKeys(v) {
			values[key] = n.below(key, x)
		}
	default:
		n.note(BadValue, n.v, "is not a group of keys and values: write one")
		return nil, false
	}
	return values, true
}

// twice is behind a key that is there twice.
const twice = " (twice)"

// textKeys has the keys of v as texts. One that is there twice, as a number and as a text, is neither of both: it has
// another name, which nothing understands.
func textKeys(v map[any]any) map[string]any {
	out := make(map[string]any, len(v))
	for k, x := range v {
		key := fmt.Sprint(k)
		if _, there := out[key]; there {
			key += twice
		}
		out[key] = x
	}
	return out
}

// fields is group of an object that has the keys known and no others.
func (n node) fields(known ...string) (values map[string]node, ok bool) {
	values, ok = n.group()
	for _, k := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, k) && values[k].there() {
			values[k].note(BadValue, nil, "is not a key here: write %s", orList(known))
			ok = false
		}
	}
	return values, ok
}

// items returns the values of a list. Of nothing there are none.
func (n node) items() (list []node, ok bool) {
	if !n.there() {
		return nil, true
	}
	v, ok := n.v.([]any)
	if !ok {
		n.note(BadValue, n.v, "is not a list: write one, each item after \"- \"")
		return nil, false
	}
	for i, x := range v {
		list = append(list, n.below(i, x))
	}
	return list, true
}

// text returns what is written there; numbers count as their digits.
func (n node) text() (s string, ok bool) {
	switch v := n.v.(type) {
	case string:
		return v, true
	case int:
		return strconv.Itoa(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	}
	n.note(BadValue, n.v, "is not a text: write one")
	return "", false
}

// values reads a list of texts; ok says that all of them were understood by read, which
// returns what is wrong with one otherwise.
func values[T any](n node, read func(string) (T, string)) (out []T, ok bool) {
	list, ok := n.items()
	for _, item := range list {
		s, is := item.text()
		if !is {
			ok = false
			continue
		}
		v, wrong := read(s)
		if wrong != "" {
			item.note(BadValue, s, "%s", wrong)
			ok = false
			continue
		}
		out = append(out, v)
	}
	return out, ok
}

func orList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
