package nodeproxy

import (
	"bytes"
	"io"
	"testing"
)

// FuzzSocksRequest: whatever an application sends, the answer is a destination or
// an error, and what it said behind the request is left for the far side.
func FuzzSocksRequest(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\x02\x01\x00\x05\x01\x00\x03\x05hello\x00\x50GET / HTTP/1.1"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x04\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x01\xbb"))
	f.Add([]byte("\x05\x01\x02"))
	f.Add([]byte("GET / HTTP/1.1"))
	f.Fuzz(func(t *testing.T, said []byte) {
		in := bytes.NewReader(said)
		flow, _, err := socksRequest(in, io.Discard)
		if err != nil {
			return
		}
		if flow.Host == "" && !flow.Addr.IsValid() || flow.Host != "" && flow.Port == 0 {
			t.Errorf("%q is no error and leads to %+v", said, flow)
		}
		used := len(said) - in.Len()
		if _, _, err := socksRequest(bytes.NewReader(said[:used]), io.Discard); err != nil {
			t.Errorf("%q is a request, and its own %d bytes are not: %v", said, used, err)
		}
	})
}
