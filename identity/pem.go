package identity

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// maxFileBytes bounds what is read of one PEM file; a bundle of a hundred
// roots is about 100 KiB.
const maxFileBytes = 1 << 20

const (
	certificateType = "CERTIFICATE"
	keyType         = "PRIVATE KEY"
)

// ParseCertificates reads one or more CERTIFICATE blocks and nothing else.
func ParseCertificates(data []byte) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	certs := make([]*x509.Certificate, 0, len(blocks))
	for i, b := range blocks {
		if b.Type != certificateType {
			return nil, fmt.Errorf("block %d is a %q: want only %q", i+1, b.Type, certificateType)
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w: write the certificate again", i+1, err)
		}
		certs = append(certs, c)
	}
	return certs, nil
}

// ParsePrivateKey reads exactly one private key, PKCS#8 or SEC 1.
func ParsePrivateKey(data []byte) (crypto.Signer, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	if len(blocks) != 1 {
		return nil, fmt.Errorf("%d PEM blocks: want exactly one private key", len(blocks))
	}
	var key any
	switch b := blocks[0]; b.Type {
	case keyType:
		key, err = x509.ParsePKCS8PrivateKey(b.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(b.Bytes)
	default:
		return nil, fmt.Errorf("block is a %q: want %q (PKCS#8) or \"EC PRIVATE KEY\"", b.Type, keyType)
	}
	if err != nil {
		return nil, fmt.Errorf("private key: %w: issue certificate and key again", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key of type %T cannot sign: use ECDSA P-256", key)
	}
	return signer, nil
}

// ParseBundle reads the roots of td. A root that names a trust domain in a URI
// SAN must name td: the mix-up of two meshes' bundles is found here and not in
// a handshake.
func ParseBundle(td spiffeid.TrustDomain, data []byte) (*x509bundle.Bundle, error) {
	certs, err := ParseCertificates(data)
	if err != nil {
		return nil, err
	}
	for i, c := range certs {
		if !c.IsCA {
			return nil, fmt.Errorf("block %d (serial %x) is no CA certificate: a bundle holds roots only", i+1, c.SerialNumber)
		}
		if len(c.URIs) == 0 {
			continue
		}
		got, err := spiffeid.TrustDomainFromURI(c.URIs[0])
		if err != nil {
			return nil, fmt.Errorf("block %d: URI SAN %s: %w", i+1, sans(c), err)
		}
		if got != td {
			return nil, fmt.Errorf("block %d is a root of trust domain %q, want %q: use the bundle of that mesh", i+1, got, td)
		}
	}
	return x509bundle.FromX509Authorities(td, certs), nil
}

// pemBlocks is strict: at least one block, and only white space around them.
func pemBlocks(data []byte) ([]*pem.Block, error) {
	var blocks []*pem.Block
	rest := bytes.TrimSpace(data)
	for len(rest) > 0 {
		if !bytes.HasPrefix(rest, []byte("-----BEGIN ")) {
			if !bytes.Contains(rest, []byte("-----BEGIN ")) && len(blocks) == 0 {
				return nil, errors.New("no PEM block found: restore the file, or write it again")
			}
			return nil, fmt.Errorf("text outside of PEM blocks, behind block %d: remove it", len(blocks))
		}
		b, tail := pem.Decode(rest)
		// Decode skips what it cannot read; what it skipped must not pass.
		if b == nil || !bytes.HasPrefix(rest, []byte("-----BEGIN "+b.Type+"-----")) {
			return nil, fmt.Errorf("PEM block %d is broken or cut off: write the file again", len(blocks)+1)
		}
		if bytes.Count(rest[:len(rest)-len(tail)], []byte("-----BEGIN ")) != 1 {
			return nil, fmt.Errorf("PEM block %d is broken or cut off: write the file again", len(blocks)+1)
		}
		blocks = append(blocks, b)
		rest = bytes.TrimSpace(tail)
	}
	if len(blocks) == 0 {
		return nil, errors.New("no PEM block: the file is empty")
	}
	return blocks, nil
}

// EncodeCertificates writes what ParseCertificates reads.
func EncodeCertificates(certs ...*x509.Certificate) []byte {
	var buf bytes.Buffer
	for _, c := range certs {
		buf.Write(pem.EncodeToMemory(&pem.Block{Type: certificateType, Bytes: c.Raw}))
	}
	return buf.Bytes()
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: keyType, Bytes: der}), nil
}

// readFile reads at most maxFileBytes of path.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes: this is no PEM file of ours", path, maxFileBytes)
	}
	return data, nil
}

// ReadCertificates is ParseCertificates of a file; errors name it.
func ReadCertificates(path string) ([]*x509.Certificate, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	certs, err := ParseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("read certificates from %s: %w", path, err)
	}
	return certs, nil
}
