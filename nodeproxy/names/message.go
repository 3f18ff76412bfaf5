package names

import (
	"encoding/binary"
	"errors"

	"github.com/miekg/dns"

	"github.com/isthmus-mesh/isthmus/internal/memory"
)

const (
	headerSize = 12
	maxName    = 253 // characters of a name without the dot at its end (RFC 1035 section 2.3.4)
	maxWire    = 255 // bytes of a name in a message
	minUDP     = 512 // what a client takes by UDP that does not say more
	// maxUDP is what is answered by UDP at most, whatever a client says that it takes: it
	// passes every link without fragments (DNS flag day 2020).
	maxUDP = 1232
)

// query is one question of a client. It is read with care and without the message behind the
// question being understood: what is not ours is passed on as it is.
type query struct {
	raw      []byte // the whole message
	question []byte // the part of raw that is the question, after the header
	name     string // as it was asked, escaped as package dns wants it, with a dot at the end
	lower    string // name in lower case, without the dot at the end; "" is the root
	kind     uint16
	class    uint16
	edns     bool
	version  uint8 // of EDNS
	size     int   // what the client takes by UDP

	use *memory.Use // while the query is pending
}

var (
	errShort    = errors.New("shorter than a header")
	errReply    = errors.New("a reply")
	errCount    = errors.New("not one question")
	errQuestion = errors.New("a question that cannot be read")
	errRecords  = errors.New("records that cannot be read")
)

// readQuery reads a message. errShort and errReply get no answer: it could go round in circles.
// Of a message that is no plain query (its opcode says so) nothing but the header is read.
func readQuery(raw []byte) (q query, err error) {
	q = query{raw: raw, size: minUDP}
	if len(raw) < headerSize {
		return q, errShort
	}
	if raw[2]&0x80 != 0 {
		return q, errReply
	}
	if q.opcode() != dns.OpcodeQuery {
		return q, nil
	}
	if binary.BigEndian.Uint16(raw[4:]) != 1 {
		return q, errCount
	}
	end := q.readName()
	if end == 0 || end+4 > len(raw) {
		return q, errQuestion
	}
	q.kind, q.class = binary.BigEndian.Uint16(raw[end:]), binary.BigEndian.Uint16(raw[end+2:])
	q.question = raw[headerSize : end+4]
	return q, q.readEDNS()
}

func (q *query) id() uint16  { return binary.BigEndian.Uint16(q.raw) }
func (q *query) opcode() int { return int(q.raw[2]>>3) & 0xf }

// wanted reports whether the client wants recursion.
func (q *query) wanted() bool { return q.raw[2]&1 != 0 }

// readName reads the name of the question and returns where it ends, 0 if it cannot be read. A
// question has no name before it that it could point to.
func (q *query) readName() int {
	var name, lower []byte
	for at := headerSize; at < len(q.raw); {
		n := int(q.raw[at])
		at++
		if n == 0 {
			if q.lower = string(lower); len(lower) > 0 {
				q.lower = q.lower[:len(lower)-1]
			} else {
				name = append(name, '.')
			}
			q.name = string(name)
			return at
		}
		if n > 63 || at+n > len(q.raw) || at+n+1-headerSize > maxWire {
			return 0
		}
		for _, c := range q.raw[at : at+n] {
			name, lower = appendByte(name, c), appendByte(lower, lowered(c))
		}
		name, lower = append(name, '.'), append(lower, '.')
		at += n
	}
	return 0
}

func lowered(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// appendByte writes one character of a label: a dot within one is no end of it.
func appendByte(b []byte, c byte) []byte {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		return append(b, c)
	}
	return append(b, '\\', '0'+c/100, '0'+c/10%10, '0'+c%10)
}

// readEDNS looks for what the client says of itself behind the question.
func (q *query) readEDNS() error {
	n := 0
	for _, at := range []int{6, 8, 10} {
		n += int(binary.BigEndian.Uint16(q.raw[at:]))
	}
	at := headerSize + len(q.question)
	for range n { // each takes eleven bytes at least
		root := at < len(q.raw) && q.raw[at] == 0
		if at = skipName(q.raw, at); at == 0 || at+10 > len(q.raw) {
			return errRecords
		}
		kind, class := binary.BigEndian.Uint16(q.raw[at:]), binary.BigEndian.Uint16(q.raw[at+2:])
		if kind == dns.TypeOPT && root {
			q.edns, q.version, q.size = true, q.raw[at+5], max(minUDP, int(class))
		}
		at += 10 + int(binary.BigEndian.Uint16(q.raw[at+8:]))
		if at > len(q.raw) {
			return errRecords
		}
	}
	return nil
}

// skipName returns where a name ends that may be compressed, 0 if that cannot be said.
func skipName(b []byte, at int) int {
	for at < len(b) {
		switch n := int(b[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			return at + 2
		case n > 63:
			return 0
		default:
			at += n + 1
		}
	}
	return 0
}

// answers reports whether reply is one to q: whoever can send datagrams to the socket would
// otherwise answer in the place of the server. A server that cannot read the question need not repeat it.
func (q *query) answers(reply []byte) bool {
	if len(reply) < headerSize || reply[2]&0x80 == 0 || binary.BigEndian.Uint16(reply) != q.id() || int(reply[2]>>3)&0xf != q.opcode() {
		return false
	}
	if len(q.question) == 0 || binary.BigEndian.Uint16(reply[4:]) == 0 {
		return true
	}
	if len(reply) < headerSize+len(q.question) {
		return false
	}
	for i, c := range q.question {
		if lowered(c) != lowered(reply[headerSize+i]) {
			return false
		}
	}
	return true
}

// rcode is how a reply of at least a header ends.
func rcode(reply []byte) int { return int(reply[3] & 0xf) }

// denies reports whether a reply says that the name does not exist, and no more: an alias that
// leads to none is a name that does.
func denies(reply []byte) bool {
	return rcode(reply) == dns.RcodeNameError && binary.BigEndian.Uint16(reply[6:]) == 0
}
