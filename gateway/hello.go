package gateway

// helloState tells whether enough has been read: b is one complete ClientHello, or
// it never will be one of at most limit bytes.
func helloState(b []byte, limit int) (done, complete bool) {
	size, ok := helloSize(b)
	switch {
	case !ok || len(b) > size || size > limit:
		return true, false
	case len(b) == size:
		return true, wellFormed(handshakeMessage(b))
	}
	return false, false
}

// handshakeMessage is what the whole records b carry, without their headers.
func handshakeMessage(b []byte) []byte {
	var out []byte
	for len(b) > recordHeader {
		end := recordHeader + int(b[3])<<8 + int(b[4])
		if out == nil && end == len(b) {
			return b[recordHeader:] // nearly always
		}
		out = append(out, b[recordHeader:end]...)
		b = b[end:]
	}
	return out
}

// wellFormed reports whether m, a handshake message with its header, reads as a
// ClientHello (RFC 8446 §4.1.2). What a TLS server is to answer, if only with an
// alert, is not decided here: only that it is no nonsense.
func wellFormed(m []byte) bool {
	const version, random = 2, 32
	r := fields{rest: m, ok: true}
	r.take(4 + version + random)
	session := r.vector(1)
	suites := r.vector(2)
	compression := r.vector(1)
	if !r.ok || m[4] != tlsMajor || len(session) > 32 || len(suites) < 2 || len(suites)%2 != 0 || len(compression) == 0 {
		return false
	}
	if len(r.rest) == 0 {
		return true // TLS 1.2 may do without extensions
	}
	e := fields{rest: r.vector(2), ok: true}
	for r.ok && e.ok && len(e.rest) > 0 {
		e.take(2)
		e.vector(2)
	}
	return r.ok && e.ok && len(r.rest) == 0
}

// fields takes the fields of a TLS structure off rest; ok is false once there was
// too little of it.
type fields struct {
	rest []byte
	ok   bool
}

func (f *fields) take(n int) []byte {
	if n > len(f.rest) {
		f.ok, f.rest = false, nil
		return nil
	}
	out := f.rest[:n]
	f.rest = f.rest[n:]
	return out
}

// vector takes a field with its length, of size bytes, before it.
func (f *fields) vector(size int) []byte {
	n := 0
	for _, b := range f.take(size) {
		n = n<<8 | int(b)
	}
	return f.take(n)
}

const (
	recordHeader = 5
	tlsMajor     = 3 // of the version of every record since SSL 3.0
)

// helloSize returns how long the TLS records of the ClientHello that b begins
// with are, as far as b tells: more than len(b) if it is not all there. ok is
// false if b is something else (RFC 8446 §4 and §5.1), also for the version of a
// record: TLS servers end a connection whose first record has a version that does
// not exist without an alert.
func helloSize(b []byte) (size int, ok bool) {
	const handshake, clientHello = 22, 1
	left := -1 // bytes of the hello in records to come; unknown before its length is
	for {
		if len(b) > 0 && b[0] != handshake || len(b) > 1 && b[1] != tlsMajor {
			return 0, false
		}
		if len(b) < recordHeader {
			return size + recordHeader, true
		}
		record := int(b[3])<<8 | int(b[4])
		size += recordHeader + record
		b = b[recordHeader:]
		if left < 0 {
			if record < 4 || len(b) > 0 && b[0] != clientHello {
				return 0, false
			}
			if len(b) < 4 {
				return size, true
			}
			left = 4 + (int(b[1])<<16 | int(b[2])<<8 | int(b[3]))
		}
		if left -= record; left < 0 || record == 0 {
			return 0, false // something else is in the same record
		}
		if left == 0 || len(b) < record {
			return size, true
		}
		b = b[record:]
	}
}
