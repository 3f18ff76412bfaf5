package hbone

import (
	"crypto/tls"
	"errors"
	"testing"

	"golang.org/x/sys/cpu"
)

func tlsState(s *Session) (tls.ConnectionState, error) {
	state, ok := s.TLS()
	if !ok {
		return state, errors.New("no TLS")
	}
	return state, nil
}

// With AES in hardware our own pairs agree on AES-128, which costs a tenth less
// than AES-256 (crypto/tls, 16 KiB records, 2026-11).
func TestOurPairsAgreeOnAES128(t *testing.T) {
	if !cpu.X86.HasAES && !cpu.ARM64.HasAES {
		t.Skip("no AES in hardware: ChaCha20 is right")
	}
	r := newRig(t, rigConfig{})
	for name, s := range map[string]*Session{"client": r.client, "server": r.server} {
		if got := must(tlsState(s)).CipherSuite; got != tls.TLS_AES_128_GCM_SHA256 {
			t.Errorf("%s negotiated %s", name, tls.CipherSuiteName(got))
		}
	}
}
