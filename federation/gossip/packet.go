package gossip

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/federation/record"
	"github.com/isthmus-mesh/isthmus/internal/link"
)

// The types of memberlist's messages, which it appends to and never changes.
const (
	typePing         byte = 0
	typeIndirectPing byte = 1
	typeAck          byte = 2
	typeSuspect      byte = 3
	typeAlive        byte = 4
	typeDead         byte = 5
	typeState        byte = 6
	typeCompound     byte = 7
	typeUser         byte = 8
	typeNack         byte = 11
	typeChecked      byte = 12
	typeError        byte = 13

	// typeDirect is none of them: the rest of the frame is a message for the node.
	typeDirect byte = 255
)

const (
	maxPacket    = 64 << 10 // bytes
	maxMessage   = maxPacket - 1 - len(record.Instance{})
	maxAbout     = 1 << 10 // bytes of a message about members
	maxIndirect  = 64      // probes for others that one connection may ask for in a second
	checkedBytes = 5       // type and checksum
)

// inspector admits those packets of one connection to memberlist whose cost it
// bounds. memberlist would inflate 64 KiB to 40 MiB, and start a goroutine for
// each indirect probe; nobody here compresses or nests.
type inspector struct {
	from   record.Instance
	about  bool // it may speak of members
	second time.Time
	asked  int // indirect probes in this second
}

func (i *inspector) admit(b []byte, now time.Time) error {
	if len(b) > maxPacket {
		return fmt.Errorf("packet of %d bytes, limit %d: %w", len(b), maxPacket, link.ErrOversized)
	}
	if len(b) > checkedBytes && b[0] == typeChecked {
		b = b[checkedBytes:]
	}
	if b[0] != typeCompound {
		return i.message(b, now)
	}
	if len(b) < 2 || len(b) < 2+2*int(b[1]) {
		return &peer.MalformedError{Cause: fmt.Errorf("compound message of %d bytes is cut off", len(b))}
	}
	sizes, rest := b[2:2+2*int(b[1])], b[2+2*int(b[1]):]
	for ; len(sizes) > 0; sizes = sizes[2:] {
		n := int(binary.BigEndian.Uint16(sizes))
		if n == 0 || n > len(rest) {
			return &peer.MalformedError{Cause: fmt.Errorf("part of %d bytes in a compound message with %d left", n, len(rest))}
		}
		if err := i.message(rest[:n], now); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

// message checks one message of a packet.
func (i *inspector) message(b []byte, now time.Time) error {
	switch b[0] {
	case typeUser:
		if len(b) < 1+len(i.from) || record.Instance(b[1:1+len(i.from)]) != i.from {
			return &peer.IdentityError{Cause: fmt.Errorf("user message that does not name its sender %s", i.from)}
		}
		return nil
	case typeIndirectPing:
		if now.Sub(i.second) >= time.Second {
			i.second, i.asked = now, 0
		}
		if i.asked++; i.asked > maxIndirect {
			return fmt.Errorf("indirect probes, more than %d in a second: %w", maxIndirect, peer.ErrFull)
		}
	case typePing, typeAck, typeNack:
	case typeSuspect, typeAlive, typeDead:
		if !i.about {
			return &peer.IdentityError{Cause: fmt.Errorf("word about members (type %d) of one who is none", b[0])}
		}
	default:
		return &peer.MalformedError{Cause: fmt.Errorf("packet of type %d", b[0])}
	}
	if len(b) > maxAbout {
		return fmt.Errorf("message of type %d has %d bytes, limit %d: %w", b[0], len(b), maxAbout, link.ErrOversized)
	}
	return nil
}
