package header

import "strings"

const (
	// maxCause bounds an isthmus-cause.
	maxCause = 200
	// maxError bounds an error of this process in its own log and answers: room for the
	// hops, the address, both identities and the remedy.
	maxError = 1024
)

// Cause returns text as it may stand in an isthmus-cause header and in a log: at most
// 200 bytes of printable ASCII, the last ones: an error ends with its cause. It is for
// people, sent to identities of the mesh alone, and never a label of a metric.
func Cause(text string) string { return last(text, maxCause) }

// Error is Cause of an error that this process tells its own operators, of at most 1024
// bytes.
func Error(text string) string { return last(text, maxError) }

func last(text string, limit int) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, text))
	if len(text) > limit {
		const cut = "..."
		text = text[len(text)-limit+len(cut):]
		if _, rest, ok := strings.Cut(text, " "); ok { // no half of an address or a name
			text = rest
		}
		text = cut + text
	}
	return text
}
