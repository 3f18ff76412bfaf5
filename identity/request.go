package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

const requestType = "CERTIFICATE REQUEST"

// Request is what somebody who holds the key for Key asks to be: Key has signed
// it. Whether they may be ID is another question.
type Request struct {
	ID  spiffeid.ID
	Key crypto.PublicKey
}

// ParseRequest reads one PKCS#10 request in PEM. It must have a SPIFFE ID of a
// workload as its only name, an ECDSA key, and a signature of that key. The
// subject is not looked at: no certificate of ours has one.
func ParseRequest(data []byte) (Request, error) {
	if len(data) > maxFileBytes {
		return Request{}, fmt.Errorf("request of %d bytes: want at most %d", len(data), maxFileBytes)
	}
	blocks, err := pemBlocks(data)
	if err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	if len(blocks) != 1 || blocks[0].Type != requestType {
		return Request{}, fmt.Errorf("request: %d PEM blocks, the first a %q: want one %q", len(blocks), blocks[0].Type, requestType)
	}
	csr, err := x509.ParseCertificateRequest(blocks[0].Bytes)
	if err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	// Before the signature: checking one of a huge RSA key is expensive.
	if _, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok {
		return Request{}, fmt.Errorf("request: key algorithm %s: use ECDSA P-256", csr.PublicKeyAlgorithm)
	}
	if err := csr.CheckSignature(); err != nil {
		return Request{}, fmt.Errorf("request: signature: %w: sign it with the key that it is for", err)
	}
	if len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses) > 0 {
		return Request{}, errors.New("request: it asks for names other than a SPIFFE ID: leave them out, they would not be certified")
	}
	if len(csr.URIs) != 1 {
		return Request{}, fmt.Errorf("request: %d URI SANs: want exactly one, the SPIFFE ID", len(csr.URIs))
	}
	id, err := ParseID(csr.URIs[0].String())
	if err != nil {
		return Request{}, fmt.Errorf("request: %w", err)
	}
	return Request{ID: id, Key: csr.PublicKey}, nil
}
