package wire

import (
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Malformed returns what makes a header list Malformed (RFC 9113 §8.2) that the
// Framer lets pass, empty if nothing does.
func Malformed(f *http2.MetaHeadersFrame) string {
	for _, hf := range f.Fields {
		if reason := badField(hf); reason != "" {
			return reason
		}
	}
	return ""
}

func badField(f hpack.HeaderField) string {
	if v := f.Value; v != "" && (blank(v[0]) || blank(v[len(v)-1])) {
		return "white space around a field value"
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return "field of a connection: " + f.Name
	case "te":
		if f.Value != "trailers" {
			return "te that is not trailers"
		}
	}
	return ""
}

func blank(c byte) bool { return c == ' ' || c == '\t' }
