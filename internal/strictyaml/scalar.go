package strictyaml

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"
)

var (
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// MaxDuration is the longest duration that is read. Programs add durations up and multiply
// them, and a sum beyond 292 years would be negative.
const MaxDuration = 365 * 24 * time.Hour

// isScalar reports whether a value of type t is written as one word.
func isScalar(t reflect.Type) bool {
	if t == durationType || reflect.PointerTo(t).Implements(textType) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return true
	}
	return false
}

// setScalar sets v, for which isScalar holds, from text. The error holds the
// value and the remedy.
func setScalar(v reflect.Value, text string) error {
	t := v.Type()
	bad := func(cause error) error {
		if cause != nil {
			return fmt.Errorf("%s: %w: want %s", quote(text), cause, want(t))
		}
		return fmt.Errorf("%s: want %s", quote(text), want(t))
	}
	if t == durationType {
		d, err := time.ParseDuration(text)
		if err != nil {
			return bad(nil)
		}
		if d < -MaxDuration || d > MaxDuration {
			return fmt.Errorf("%s: want at most %.0fh, which is a year", quote(text), MaxDuration.Hours())
		}
		v.SetInt(int64(d))
		return nil
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if err := u.UnmarshalText([]byte(text)); err != nil {
			if _, known := examples[t]; known {
				return bad(nil) // our own words are clearer than the parser's
			}
			if _, says := v.Addr().Interface().(wanter); says {
				return bad(nil)
			}
			return fmt.Errorf("%s: %w", quote(text), err)
		}
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		if text != "true" && text != "false" {
			return bad(nil)
		}
		v.SetBool(text == "true")
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(text, t.Bits())
		if err != nil || f != f || f-f != 0 { // NaN and infinities are typing errors here
			return bad(nil)
		}
		v.SetFloat(f)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, t.Bits())
		if err != nil {
			return bad(rangeOnly(err))
		}
		v.SetInt(n)
	default:
		n, err := strconv.ParseUint(text, 10, t.Bits())
		if err != nil {
			return bad(rangeOnly(err))
		}
		v.SetUint(n)
	}
	return nil
}

func rangeOnly(err error) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("out of range")
	}
	return nil
}

// examples say how the types that parse themselves are written.
var examples = map[reflect.Type]string{
	durationType:                      "a number with a unit, such as 250ms, 10s or 1h",
	reflect.TypeFor[netip.Addr]():     "an IP address, such as 127.0.0.1",
	reflect.TypeFor[netip.AddrPort](): "an IP address and a port, such as 127.0.0.1:15008",
	reflect.TypeFor[time.Time]():      "a time as RFC 3339 writes it, such as 2026-11-22T10:00:00Z",
	reflect.TypeFor[netip.Prefix]():   "an address range, such as 10.0.0.0/8",
}

// wanter is a type that parses itself and says how it is written.
type wanter interface{ Want() string }

// want says how a value of type t is written.
func want(t reflect.Type) string {
	if w, ok := reflect.New(t).Interface().(wanter); ok {
		return w.Want()
	}
	if s, ok := examples[t]; ok {
		return s
	}
	if reflect.PointerTo(t).Implements(textType) {
		return "one word"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number, such as 0.25"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number" + bounds(-1<<(t.Bits()-1), 1<<(t.Bits()-1)-1, t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number" + bounds(0, 1<<min(t.Bits(), 62)-1, t.Bits())
	case reflect.Slice:
		return "a list"
	}
	return "keys and values"
}

func bounds(low, high int64, bits int) string {
	if bits > 32 {
		if low == 0 {
			return ", not negative"
		}
		return ""
	}
	return fmt.Sprintf(" from %d to %d", low, high)
}

// quote shows a value, shortened: an error line stays one line.
func quote(s string) string {
	const limit = 80
	if r := []rune(s); len(r) > limit {
		s = string(r[:limit]) + "…"
	}
	return strconv.Quote(strings.ToValidUTF8(s, "\uFFFD"))
}
