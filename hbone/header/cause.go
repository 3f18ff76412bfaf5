package header

import "strings"

// maxCause bounds an isthmus-cause.
const maxCause = 200

// Cause returns text as it may stand in an isthmus-cause header and in a log: at most
// 200 bytes of printable ASCII, the last ones: an error ends with its cause. It is for
// people, sent to identities of the mesh alone, and never a label of a metric.
func Cause(text string) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text))
	if len(text) > maxCause {
		const cut = "..."
		text = text[len(text)-maxCause+len(cut):]
		if _, rest, ok := strings.Cut(text, " "); ok { // no half of an address or a name
			text = rest
		}
		text = cut + text
	}
	return text
}
