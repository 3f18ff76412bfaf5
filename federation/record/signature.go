package record

import (
	"crypto/ed25519"
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
)

// A signed body ends with its signature, as a field that bodies of every kind have:
// whoever relays it keeps it, whatever version it is of, and readers that do not know
// the field pass over it.
const (
	signatureField = 2047 // of NetworkBody, ExportBody and HealthBody

	// SignatureBytes is what a signature adds to a body.
	SignatureBytes = 2 + 1 + ed25519.SignatureSize
)

// signaturePrefix is what stands between the body that was signed and its signature.
var signaturePrefix = protowire.AppendVarint(protowire.AppendTag(nil, signatureField, protowire.BytesType), ed25519.SignatureSize)

// SignWith returns e with the signature that sign makes over what [Entry.Signed]
// returns: an instance of network says e. The body of e has no signature yet, and is
// not changed.
func (e Entry) SignWith(network string, i Instance, sign func([]byte) []byte) Entry {
	signature := sign(e.statement(network, i, e.Body))
	body := make([]byte, 0, len(e.Body)+SignatureBytes)
	e.Body = append(append(append(body, e.Body...), signaturePrefix...), signature...)
	return e
}

// Signed returns what an instance of network has signed if it says e, and its
// signature; not ok if e has none.
func (e Entry) Signed(network string, i Instance) (statement, signature []byte, ok bool) {
	body, signature, ok := e.split()
	if !ok {
		return nil, nil, false
	}
	return e.statement(network, i, body), signature, true
}

// Says reports whether e and o say the same: their bodies differ in signatures at most.
func (e Entry) Says(o Entry) bool {
	a, _, _ := e.split()
	b, _, _ := o.split()
	return string(a) == string(b)
}

// split returns the body without its signature, and that.
func (e Entry) split() (body, signature []byte, ok bool) {
	n := len(e.Body) - SignatureBytes
	if n < 0 || string(e.Body[n:n+len(signaturePrefix)]) != string(signaturePrefix) {
		return e.Body, nil, false
	}
	return e.Body[:n:n], e.Body[n+len(signaturePrefix):], true
}

// statement is what is signed. Parts of varying length have their lengths before them:
// no two records have one encoding.
func (e Entry) statement(network string, i Instance, body []byte) []byte {
	b := make([]byte, 0, 4+len(network)+len(i)+4+len(e.Key)+8+len(body))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(network))), network...)
	b = append(b, i[:]...)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(e.Key))), e.Key...)
	b = binary.BigEndian.AppendUint64(b, e.Sequence)
	return append(b, body...)
}
