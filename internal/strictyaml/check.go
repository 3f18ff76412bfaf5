package strictyaml

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Check collects what is wrong with a configuration that was read, in the
// order in which it is told. The zero value is ready.
type Check struct{ errs []error }

// Fail notes that field cannot be as it is; the message has the value and the
// remedy.
func (c *Check) Fail(field, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(field+": "+format, args...))
}

// Field notes err as what is wrong with field, unless it is nil.
func (c *Check) Field(field string, err error) {
	if err != nil {
		c.Fail(field, "%w", err)
	}
}

// Required notes that a text is missing.
func (c *Check) Required(field, value, remedy string) {
	if value == "" {
		c.Fail(field, "is empty: %s", remedy)
	}
}

// Positive notes that a duration is zero or negative.
func (c *Check) Positive(field string, d time.Duration) {
	if d <= 0 {
		c.Fail(field, "%v: must be positive, for example 5s", d)
	}
}

// Join notes what others have found; each joined error begins with its key.
func (c *Check) Join(err error) {
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

// Below notes what is wrong with a group of keys; each joined error begins with
// its key in the group.
func (c *Check) Below(group string, err error) {
	if err != nil {
		c.errs = append(c.errs, eachAfter(group+".", err))
	}
}

// Err joins what was noted; nil if nothing was.
func (c *Check) Err() error { return errors.Join(c.errs...) }

// Validator is a configuration that knows what cannot be, and warns of what can
// be but is hardly meant.
type Validator interface {
	Validate() (warnings []string, err error)
}

// LoadValid reads the file at path over c, which holds the defaults, and the
// environment over both, and validates the result. The error joins all mistakes that
// can be known, in the order of the file, each with its line; a file that is no YAML
// has no others. also is asked what else is wrong with c, by other files. Beside an
// error c is what could be read.
func LoadValid[C Validator](path string, c C, also ...func(C) error) (C, []string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return c, nil, fmt.Errorf("read configuration: %w", err)
	}
	doc, err := Parse(path, data)
	if err != nil {
		return c, nil, err
	}
	unread := errors.Join(doc.Decode(&c), ApplyEnv(&c, os.LookupEnv))
	warnings, bad := c.Validate()
	for _, f := range also {
		bad = errors.Join(bad, f(c))
	}
	if unread == nil && bad == nil {
		return c, warnings, nil
	}
	wrong, rest := doc.located(bad, Keys(c))
	return c, nil, errors.Join(append(joined(Mistakes(unread, wrong)), rest...)...)
}

// Located returns the errors that err joins as texts, each with the line of its field in the file at path, from which
// [LoadValid] has read c: for what is no mistake.
func Located(path string, c any, err error) (list []string) {
	if err == nil {
		return nil
	}
	wrong, rest := []*Error(nil), joined(err)
	if data, unread := os.ReadFile(path); unread == nil {
		if doc, unread := Parse(path, data); unread == nil {
			wrong, rest = doc.located(err, Keys(c))
		}
	}
	for _, w := range wrong {
		list = append(list, w.Error())
	}
	for _, r := range rest {
		list = append(list, r.Error())
	}
	return list
}

// eachAfter puts before in front of every error that err joins.
func eachAfter(before string, err error) error {
	j, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("%s%w", before, err)
	}
	var errs []error
	for _, e := range j.Unwrap() {
		errs = append(errs, eachAfter(before, e))
	}
	return errors.Join(errs...)
}
