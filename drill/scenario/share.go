package scenario

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Share is a part of a whole in [0, 1]. In YAML it is a number, or a percentage
// such as 20 %.
type Share float64

var (
	_ encoding.TextUnmarshaler = (*Share)(nil)
	_ encoding.TextUnmarshaler = (*Count)(nil)
	_ encoding.TextMarshaler   = Count{}
)

// UnmarshalText reads 0.2, 20% or 20 %. Its range is checked with the scenario.
func (s *Share) UnmarshalText(b []byte) error {
	v, _, err := parseShare(string(b))
	if err != nil {
		return errors.New("write " + s.Want())
	}
	*s = Share(v)
	return nil
}

// Want says how a share is written.
func (s *Share) Want() string { return "a share, such as 0.2 or 20 %" }

// parseShare reads a finite number, divided by 100 if a percent sign follows.
func parseShare(text string) (v float64, percent bool, err error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err = strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = strconv.ErrRange
	}
	if percent {
		v /= 100
	}
	return v, percent, err
}

// Count is a number of things or a share of them; at most one field is set. The
// zero value is "not given".
type Count struct {
	Number int
	Share  float64 // in (0, 1]
}

// All stands for every pod.
var All = Count{Share: 1}

// UnmarshalText reads "all", a percentage or a positive number.
func (c *Count) UnmarshalText(b []byte) error {
	text := string(b)
	if text == "all" {
		*c = All
		return nil
	}
	v, percent, err := parseShare(text)
	switch {
	case err == nil && percent && v > 0 && v <= 1:
		*c = Count{Share: v}
		return nil
	case err == nil && !percent && v >= 1 && v == math.Trunc(v) && v < 1e6:
		*c = Count{Number: int(v)}
		return nil
	}
	return errors.New("write " + c.Want())
}

// Want says how a count is written.
func (c *Count) Want() string { return "a positive number, a share such as 20 %, or all" }

// Of is how many of n things c stands for. A share is rounded to the nearest
// number, but a share of something is at least one.
func (c Count) Of(n int) int {
	if c.Share > 0 && n > 0 {
		return min(n, max(1, int(math.Round(c.Share*float64(n)))))
	}
	return c.Number
}

func (c Count) String() string {
	switch {
	case c == All:
		return "all"
	case c.Share > 0:
		return fmt.Sprintf("%g %%", 100*c.Share)
	}
	return strconv.Itoa(c.Number)
}

// MarshalText is the inverse of UnmarshalText.
func (c Count) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
