package header

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxAvoid is how many endpoints an isthmus-avoid header may name.
const MaxAvoid = 64

// FormatEndpoint returns the wire form of an endpoint ID: 16 hexadecimal digits.
func FormatEndpoint(id uint64) string { return fmt.Sprintf("%016x", id) }

// ParseEndpoint reads the wire form; anything else is zero, which means unknown.
func ParseEndpoint(s string) uint64 {
	if len(s) != 16 {
		return 0
	}
	id, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		return 0
	}
	return id
}

// maxWeight is the largest weight that discovery gives an endpoint.
const maxWeight = 65535

// FormatWeight returns the wire form of the weight of an endpoint.
func FormatWeight(w uint32) string { return strconv.FormatUint(uint64(w), 10) }

// ParseWeight reads the wire form; anything else, and zero, is one: what peers mean
// that do not say.
func ParseWeight(s string) uint32 {
	w, err := strconv.ParseUint(s, 10, 32)
	if err != nil || w == 0 {
		return 1
	}
	return uint32(min(w, maxWeight))
}

// FormatAvoid joins at most MaxAvoid endpoint IDs; the first ones win.
func FormatAvoid(ids []uint64) string {
	if len(ids) > MaxAvoid {
		ids = ids[:MaxAvoid]
	}
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(FormatEndpoint(id))
	}
	return b.String()
}

// ParseAvoid returns the IDs that s names. It is advisory: what cannot be read
// is left out, and nothing after the first MaxAvoid items is looked at.
func ParseAvoid(s string) []uint64 {
	var ids []uint64
	for i := 0; i < MaxAvoid && s != ""; i++ {
		var item string
		item, s, _ = strings.Cut(s, ",")
		if id := ParseEndpoint(strings.TrimSpace(item)); id != 0 {
			ids = append(ids, id)
		}
	}
	return ids
}
