package gateway

// helloState tells whether enough has been read: b is one complete ClientHello, or
// it never will be one of at most limit bytes.
func helloState(b []byte, limit int) (done, complete bool) {
	size, ok := helloSize(b)
	switch {
	case !ok || len(b) > size || size > limit:
		return true, false
	case len(b) == size:
		return true, true
	}
	return false, false
}

// helloSize returns how long the TLS records of the ClientHello that b begins
// with are, as far as b tells: more than len(b) if it is not all there. ok is
// false if b is something else (RFC 8446 §4 and §5.1).
func helloSize(b []byte) (size int, ok bool) {
	const header, handshake, clientHello = 5, 22, 1
	left := -1 // bytes of the hello in records to come; unknown before its length is
	for {
		if len(b) > 0 && b[0] != handshake {
			return 0, false
		}
		if len(b) < header {
			return size + header, true
		}
		record := int(b[3])<<8 | int(b[4])
		size += header + record
		b = b[header:]
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
