package mesh

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
)

// EndpointID names one workload on one network towards other networks: an
// opaque 64-bit value that is stable for as long as the workload's UID is. It
// travels in the isthmus-endpoint, isthmus-avoid and isthmus-pin headers. Zero
// means "unknown".
type EndpointID uint64

// EndpointIDOf derives the ID of the workload uid on network: the first eight
// bytes of SHA-256 over both, length-prefixed. It is never zero.
func EndpointIDOf(network, uid string) EndpointID {
	var buf [128]byte
	text := buf[:0]
	for _, part := range [...]string{network, uid} {
		text = append(append(strconv.AppendInt(text, int64(len(part)), 10), ':'), part...)
	}
	sum := sha256.Sum256(text)
	return max(1, EndpointID(binary.BigEndian.Uint64(sum[:])))
}

// String returns the wire form: sixteen lower-case hexadecimal digits.
func (id EndpointID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// MarshalText writes id as String, for JSON: a number of 64 bits does not survive there.
func (id EndpointID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// ParseEndpointID reads the wire form of String.
func ParseEndpointID(s string) (EndpointID, error) {
	if len(s) != 16 {
		return 0, fmt.Errorf("endpoint id %q: want 16 hexadecimal digits", s)
	}
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("endpoint id %q: want 16 hexadecimal digits, not all zero", s)
	}
	return EndpointID(v), nil
}

// Endpoint is a workload as a member of one service and port. Health attaches
// to the pair (Workload, its target port).
type Endpoint struct {
	Workload *Workload
	Service  *Service
	Port     Port
}
