package strictyaml

import (
	"cmp"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Mistakes joins what could not be read, the error of [Doc.Decode], with what is
// wrong with the rest, in the order of the file. A field of which a part could not
// be read has no value that could be wrong, and none that another could be compared
// with. The result is nil if there is neither.
func Mistakes(unread error, wrong []*Error) error {
	var all []*Error
	var rest []error
	for _, err := range joined(unread) {
		if e := (*Error)(nil); errors.As(err, &e) {
			all = append(all, e)
		} else {
			rest = append(rest, err)
		}
	}
	read := len(all)
	for _, w := range wrong {
		if !slices.ContainsFunc(all[:read], func(e *Error) bool { return follows(w, e.Field) || follows(w, e.meant) }) {
			all = append(all, w)
		}
	}
	slices.SortStableFunc(all, func(a, b *Error) int { return cmp.Compare(a.Line, b.Line) })
	var errs []error
	for _, e := range all {
		errs = append(errs, e)
	}
	return errors.Join(append(errs, rest...)...)
}

// follows reports whether w may be there only because field was not read; not if that
// is empty.
func follows(w *Error, field string) bool {
	return field != "" && (within(w.Field, field) || within(field, w.Field) || strings.Contains(w.Message, field))
}

// within reports whether field is whole or a part of it.
func within(field, whole string) bool {
	rest, ok := strings.CutPrefix(field, whole)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// joined undoes errors.Join.
func joined(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, joined(e)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// Elsewhere reports whether all that err joins are mistakes in other files than the one
// called name.
func Elsewhere(err error, name string) bool {
	for _, one := range joined(err) {
		if e := (*Error)(nil); !errors.As(one, &e) || e.File == name {
			return false
		}
	}
	return err != nil
}

// fieldError is how [Validator.Validate] writes a mistake.
var fieldError = regexp.MustCompile(`^([a-zA-Z]\w*(?:\.\w+|\[\d+\])*): (.*)$`)

// located gives each of the errors that begins with a field its line. What the
// environment has overridden has none. Others are returned as they are.
func (d *Doc) located(err error, keys []Key) (wrong []*Error, rest []error) {
	for _, e := range joined(err) {
		m := fieldError.FindStringSubmatch(e.Error())
		if m == nil {
			rest = append(rest, e)
			continue
		}
		if env := overriddenBy(m[1], keys); env != "" {
			rest = append(rest, errors.New("environment variable "+env+": "+e.Error()))
			continue
		}
		wrong = append(wrong, &Error{File: d.name, Line: d.Line(pathOf(m[1])...), Field: m[1], Message: m[2]})
	}
	return wrong, rest
}

func overriddenBy(field string, keys []Key) string {
	for _, k := range keys {
		if k.Name == field && k.Env != "" && os.Getenv(k.Env) != "" {
			return k.Env
		}
	}
	return ""
}

// pathOf is the path that [Doc.Pos] takes to a dotted field.
func pathOf(field string) (path []any) {
	for _, part := range strings.FieldsFunc(field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		if i, err := strconv.Atoi(part); err == nil {
			path = append(path, i)
		} else {
			path = append(path, part)
		}
	}
	return path
}
