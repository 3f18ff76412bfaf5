package wire

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/net/http2"
)

// HasDetail reports whether Detail says something of such a frame.
func HasDetail(h Header) bool {
	switch h.Kind {
	case FrameRST, FrameWindowUpdate, FrameGoAway, FramePing, FrameSettings:
		return true
	}
	return false
}

// Detail returns the values that matter of a frame with payload p.
func Detail(h Header, p []byte) string {
	word := func(i int) uint32 {
		if len(p) < i+4 {
			return 0
		}
		return binary.BigEndian.Uint32(p[i:])
	}
	switch h.Kind {
	case FrameRST:
		return fmt.Sprintf("code=%v", http2.ErrCode(word(0)))
	case FrameWindowUpdate:
		return fmt.Sprintf("increment=%d", word(0)&MaxStreamID)
	case FrameGoAway:
		return fmt.Sprintf("last=%d code=%v debug=%q", word(0)&MaxStreamID, http2.ErrCode(word(4)), p[min(8, len(p)):])
	case FramePing:
		return fmt.Sprintf("data=%x", p)
	case FrameSettings:
		var b strings.Builder
		for i := 0; i+6 <= len(p) && i < 60; i += 6 {
			fmt.Fprintf(&b, "%v=%d ", http2.SettingID(binary.BigEndian.Uint16(p[i:])), word(i+2))
		}
		return strings.TrimSpace(b.String())
	}
	return ""
}
