package header

import (
	"encoding/hex"
	"io"
	"strings"
)

// NewTraceparent draws a W3C trace context (version 00, not sampled) from rand.
// A rand that fails yields the empty string.
func NewTraceparent(rand io.Reader) string {
	var id [24]byte
	for {
		if _, err := io.ReadFull(rand, id[:]); err != nil {
			return ""
		}
		s := "00-" + hex.EncodeToString(id[:16]) + "-" + hex.EncodeToString(id[16:]) + "-00"
		if _, _, ok := ParseTraceparent(s); ok {
			return s
		}
	}
}

// ParseTraceparent returns the trace and span IDs (32 and 16 lower-case
// hexadecimal digits). All-zero IDs and any length but 55 are invalid.
func ParseTraceparent(s string) (trace, span string, ok bool) {
	if len(s) != 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return "", "", false
	}
	trace, span = s[3:35], s[36:52]
	if !lowerHex(s[:2]) || s[:2] == "ff" || !lowerHex(trace) || !lowerHex(span) || !lowerHex(s[53:]) {
		return "", "", false
	}
	if strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return "", "", false
	}
	return trace, span, true
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
