package quic

import (
	"bytes"
	"io"
	"slices"
	"strconv"

	"github.com/quic-go/qpack"

	"github.com/isthmus-mesh/isthmus/hbone"
)

// block encodes a field section (RFC 9204) with the static table alone.
func block(h hbone.Header, pseudo ...qpack.HeaderField) []byte {
	var buf bytes.Buffer
	enc := qpack.NewEncoder(&buf)
	for _, f := range pseudo {
		enc.WriteField(f) // into memory, cannot fail
	}
	for name, value := range h {
		enc.WriteField(qpack.HeaderField{Name: name, Value: value})
	}
	return appendFrame(nil, frameHeaders, buf.Bytes()...)
}

func requestBlock(authority string, h hbone.Header) []byte {
	return block(h, qpack.HeaderField{Name: ":method", Value: "CONNECT"}, qpack.HeaderField{Name: ":authority", Value: authority})
}

func responseBlock(status int, h hbone.Header) []byte {
	return block(h, qpack.HeaderField{Name: ":status", Value: strconv.Itoa(status)})
}

// section is a decoded field section.
type section struct {
	pseudo map[string]string
	header hbone.Header
}

// decode reads a field section. Its size is bounded as RFC 9114 §4.2.2 counts it.
func decode(b []byte) (s section, err error) {
	next := qpack.NewDecoder().Decode(b)
	s.pseudo = map[string]string{}
	for size := 0; ; {
		f, err := next()
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, broke(codeDecompression, "%v", err)
		}
		if size += len(f.Name) + len(f.Value) + 32; size > maxHeaderBlock {
			return s, broke(codeExcessiveLoad, "field section of more than %d bytes", maxHeaderBlock)
		}
		if f.IsPseudo() {
			if _, twice := s.pseudo[f.Name]; twice || len(s.header) > 0 {
				return s, broke(codeMessage, "misplaced %s", f.Name)
			}
			s.pseudo[f.Name] = f.Value
			continue
		}
		if !valid(f) {
			return s, broke(codeMessage, "malformed field %q", f.Name)
		}
		if v, ok := s.header[f.Name]; ok {
			f.Value = v + "," + f.Value
		}
		s.header.Set(f.Name, f.Value)
	}
}

// connectionFields may not be sent in HTTP/3, nor "te" but with "trailers" (RFC 9114 §4.2).
var connectionFields = []string{"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}

// valid reports whether f is a proper field: a name in lower case, no control characters.
func valid(f qpack.HeaderField) bool {
	if f.Name == "" || slices.Contains(connectionFields, f.Name) || f.Name == "te" && f.Value != "trailers" {
		return false
	}
	for _, c := range []byte(f.Name) {
		if c <= ' ' || c >= 0x7f || c == ':' || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	for _, c := range []byte(f.Value) {
		if c == 0 || c == '\r' || c == '\n' {
			return false
		}
	}
	return true
}

// malformedConnect reports whether s is a CONNECT without :authority, or with other pseudo-header fields (RFC 9114 §4.4).
func (s section) malformedConnect() bool {
	_, named := s.pseudo[":authority"]
	return s.pseudo[":method"] == "CONNECT" && (!named || len(s.pseudo) != 2)
}

// status returns the status of a response, 0 if it has no valid one.
func (s section) status() int {
	n, err := strconv.ParseUint(s.pseudo[":status"], 10, 16)
	if err != nil || len(s.pseudo[":status"]) != 3 || n < 100 || n == 101 || len(s.pseudo) != 1 {
		return 0
	}
	return int(n)
}
