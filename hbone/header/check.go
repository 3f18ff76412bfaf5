package header

import "fmt"

// Authorities of path checks. No service is exported by them: RFC 6761 reserves "invalid".
const (
	CheckAuthority = "check.isthmus.invalid:1"      // a gateway refuses it with 404
	SinkAuthority  = "sink.check.isthmus.invalid:1" // a gateway discards what another gateway sends to it, for a few seconds
)

// Headers of a CONNECT to [CheckAuthority] and its response. A peer ignores the ones that it does not know.
const (
	NamePadding = "isthmus-padding" // request: bytes that have no meaning
	NameEcho    = "isthmus-echo"    // request: up to MaxEcho bytes, which the response repeats
	NameSent    = "isthmus-sent"    // response: a Sent
)

// MaxEcho is how many bytes of [NameEcho] a response repeats: two segments of a path with an MTU of 9001.
const MaxEcho = 18 << 10

// Sent is what a gateway's kernel has sent on the connection of a check.
type Sent struct {
	Segments   uint64 // with data, retransmissions among them
	Lost       uint64 // of these: retransmissions that the peer needed
	MaxSegment int    // largest payload of a segment, TCP options included
}

// String is the value of [NameSent].
func (s Sent) String() string { return fmt.Sprintf("%d %d %d", s.Segments, s.Lost, s.MaxSegment) }

// ParseSent reads a value of [NameSent]. ok is false if it is none.
func ParseSent(v string) (s Sent, ok bool) {
	n, err := fmt.Sscanf(v, "%d %d %d", &s.Segments, &s.Lost, &s.MaxSegment)
	if n != 3 || err != nil || s.Lost > s.Segments || s.MaxSegment < 0 || s.MaxSegment > 1<<16 {
		return Sent{}, false
	}
	return s, true
}
