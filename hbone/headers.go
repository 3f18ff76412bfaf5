package hbone

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Header names on CONNECT requests and answers. Peers that do not know the
// isthmus-* ones ignore them.
const (
	HeaderEndpoint         = "isthmus-endpoint"    // outer 200, inner response: which endpoint was dialled / answered
	HeaderAvoid            = "isthmus-avoid"       // outer request: endpoints this client has seen fail, advisory
	HeaderPin              = "isthmus-pin"         // outer request: this endpoint or 503
	HeaderReason           = "isthmus-reason"      // non-200: a Reason
	HeaderEnds             = "isthmus-ends"        // inner request: "explicit" of a client that ends each stream itself, see Stream.EndAtEOF
	HeaderCause            = "isthmus-cause"       // non-200: what happened, for people; see Cause
	HeaderBaggage          = "baggage"             // who calls, who answered
	HeaderForwarded        = "forwarded"           // the application's address and the service it asked for
	HeaderTraceparent      = "traceparent"         // one per application connection, the same on both hops
	HeaderForwardedNetwork = "x-forwarded-network" // inner CONNECT of a double tunnel: the sender's network
)

// MaxAvoid is how many endpoints an isthmus-avoid header may name.
const MaxAvoid = 16

// Header holds header fields by lower-case name; repeated fields are joined
// with a comma. The zero value is empty and ready to use.
type Header map[string]string

// Get returns the value of name (lower case), empty if absent.
func (h Header) Get(name string) string { return h[name] }

// Set replaces the value of name (lower case), allocating the map if needed.
func (h *Header) Set(name, value string) {
	if *h == nil {
		*h = make(Header, 4)
	}
	(*h)[name] = value
}

// Request is a CONNECT. Authority is host:port in any of the forms that the
// receiver understands; Header must not hold pseudo-header fields.
type Request struct {
	Authority string
	Header    Header
	// Replayable says that what is written before the response belongs to no
	// application, such as the hello of an inner handshake: it may be lost or
	// be sent again, so that a session that dies meanwhile leaves ErrRetryable.
	Replayable bool
}

// plainOK stands for a 200 whose headers are in other hands.
var plainOK = &Response{Status: 200}

// Response is the response to a CONNECT.
type Response struct {
	Status int
	Header Header
}

// Endpoint is the endpoint that the response names, zero when it names none.
func (r *Response) Endpoint() uint64 { return ParseEndpoint(r.Header.Get(HeaderEndpoint)) }

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
		text = cut + text[len(text)-maxCause+len(cut):]
	}
	return text
}

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

// Forwarded returns the forwarded header of an application connection from src;
// host is the service's hostname, empty when none is known.
func Forwarded(src netip.AddrPort, host string) string {
	s := `for="` + src.String() + `"`
	if host != "" {
		s += ";host=" + host
	}
	return s
}

// ForwardedHost returns the host= part of a forwarded header, quotes stripped.
func ForwardedHost(s string) string {
	for part := range strings.SplitSeq(s, ";") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if ok && strings.EqualFold(k, "host") {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

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
