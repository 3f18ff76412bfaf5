package gateway

// Types of TLS records (RFC 8446 §5.1). Behind the hellos all but changes of the cipher
// spec are encrypted.
const (
	recordHandshake = 22
	recordEncrypted = 23
)

// recordTracker follows the TLS records of one direction of a connection, without their
// content. The zero value is before the first byte. What is no TLS reads as records of
// odd types.
type recordTracker struct {
	at     int64 // bytes so far
	begin  int64 // where the last record begins
	header [recordHeader]byte
	have   int // bytes of header
	left   int // bytes of the body, behind a whole header
}

// next takes bytes off p, which is not empty, up to the end of its first record at most
// and returns how many; begun says that the record begins with them, whole that it ends
// there.
func (r *recordTracker) next(p []byte) (n int, begun, whole bool) {
	if r.have == recordHeader && r.left == 0 {
		r.have = 0
	}
	if begun = r.have == 0; begun {
		r.begin = r.at
	}
	if r.have < recordHeader {
		n = copy(r.header[r.have:], p)
		r.have += n
		r.left = r.size()
	}
	if r.have == recordHeader {
		body := min(r.left, len(p)-n)
		n += body
		r.left -= body
		whole = r.left == 0
	}
	r.at += int64(n)
	return n, begun, whole
}

// kind is the type of the last record, and size, once its header is whole, the length of
// its body.
func (r *recordTracker) kind() byte { return r.header[0] }
func (r *recordTracker) size() int  { return int(r.header[3])<<8 | int(r.header[4]) }
