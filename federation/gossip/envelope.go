package gossip

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation"
	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/peer"
	"github.com/isthmus-mesh/isthmus/identity"
)

const (
	// signingContext keeps a signature over records from being taken for a
	// signature over anything else, and the other way round.
	signingContext = "isthmus-federation/1\x00"

	maxChain    = 4    // certificates in an envelope
	maxVerified = 1024 // chains that a verifier remembers
)

// signatureError is an envelope that its signer's SVID does not vouch for.
type signatureError struct{ cause error }

func (e *signatureError) Error() string { return "verify envelope: " + e.cause.Error() }
func (e *signatureError) Unwrap() error { return e.cause }

// rejection is [peer.Reason] that knows forged envelopes, too.
func rejection(err error) string {
	var forged *signatureError
	if errors.As(err, &forged) {
		return "signature"
	}
	return peer.Reason(err)
}

// digest identifies an envelope, whoever relayed it.
type digest [sha256.Size]byte

func digestOf(e *federationpb.Envelope) digest {
	h := sha256.New()
	h.Write(e.GetPayload())
	h.Write(e.GetSignature())
	return digest(h.Sum(nil))
}

func signedSum(payload []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(signingContext), payload...))
}

// seal signs records, which must all be of one origin and network.
func seal(svid *identity.SVID, records []federation.Record) (*federationpb.Envelope, error) {
	payload, err := federation.Encode(records)
	if err != nil {
		return nil, err
	}
	if _, ok := svid.PrivateKey.Public().(*ecdsa.PublicKey); !ok {
		return nil, fmt.Errorf("sign records as %q: key is a %T: use an ECDSA P-256 SVID", svid.ID, svid.PrivateKey.Public())
	}
	sum := signedSum(payload)
	signature, err := svid.PrivateKey.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign records as %q: %w", svid.ID, err)
	}
	e := &federationpb.Envelope{Payload: payload, Signature: signature}
	for _, c := range svid.Certificates {
		e.Chain = append(e.Chain, c.Raw)
	}
	return e, nil
}

// verifier opens envelopes. It remembers chains that it has verified: most
// envelopes come from few signers. Safe for concurrent use.
type verifier struct {
	mu    sync.Mutex
	known map[digest]signer
}

// signer is a chain that was valid under bundle, until notAfter.
type signer struct {
	id       spiffeid.ID
	key      *ecdsa.PublicKey
	notAfter time.Time
	bundle   *x509bundle.Bundle
}

// open checks e's signature under bundle and returns what it says, ages as of
// when the envelope was received: the relays' time is added.
func (v *verifier) open(e *federationpb.Envelope, bundle *x509bundle.Bundle, now time.Time) (records []federation.Record, by spiffeid.ID, err error) {
	s, err := v.signer(e.GetChain(), bundle, now)
	if err != nil {
		return nil, by, &signatureError{err}
	}
	sum := signedSum(e.GetPayload())
	if !ecdsa.VerifyASN1(s.key, sum[:], e.GetSignature()) {
		return nil, s.id, &signatureError{fmt.Errorf("signature of %q does not fit the records", s.id)}
	}
	var m federationpb.Batches
	if err := proto.Unmarshal(e.GetPayload(), &m); err != nil {
		return nil, s.id, &peer.MalformedError{Cause: err}
	}
	if n := len(m.GetBatches()); n != 1 {
		return nil, s.id, &peer.MalformedError{Cause: fmt.Errorf("envelope with %d batches, want 1", n)}
	}
	records, _, err = federation.FromBatches(&m)
	if err != nil {
		return nil, s.id, &peer.MalformedError{Cause: err}
	}
	relayed := time.Duration(min(e.GetRelayMs(), uint64(federation.MaxAge/time.Millisecond))) * time.Millisecond
	for i := range records {
		records[i].Age += relayed
		records[i].Silence += relayed
	}
	return records, s.id, nil
}

func (v *verifier) signer(chain [][]byte, bundle *x509bundle.Bundle, now time.Time) (signer, error) {
	if len(chain) == 0 || len(chain) > maxChain {
		return signer{}, fmt.Errorf("chain of %d certificates, want 1 to %d", len(chain), maxChain)
	}
	h := sha256.New()
	for _, c := range chain {
		fmt.Fprintf(h, "%d:", len(c))
		h.Write(c)
	}
	fingerprint := digest(h.Sum(nil))
	v.mu.Lock()
	s, ok := v.known[fingerprint]
	v.mu.Unlock()
	if ok && s.bundle == bundle && now.Before(s.notAfter) {
		return s, nil
	}
	s, err := verifyChain(chain, bundle, now)
	if err != nil {
		return signer{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known == nil || len(v.known) >= maxVerified {
		v.known = map[digest]signer{}
	}
	v.known[fingerprint] = s
	return s, nil
}

func verifyChain(chain [][]byte, bundle *x509bundle.Bundle, now time.Time) (signer, error) {
	s := signer{bundle: bundle}
	certs := make([]*x509.Certificate, len(chain))
	for i, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return signer{}, fmt.Errorf("parse certificate: %w", err)
		}
		if certs[i] = c; s.notAfter.IsZero() || c.NotAfter.Before(s.notAfter) {
			s.notAfter = c.NotAfter
		}
	}
	id, _, err := x509svid.Verify(certs, bundle, x509svid.WithTime(now))
	if err != nil {
		return signer{}, err
	}
	key, ok := certs[0].PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return signer{}, errors.New("the signer's key must be ECDSA")
	}
	s.id, s.key = id, key
	return s, nil
}

// aged returns e with the time since it was received (or signed) added to its
// relay age. The rest is shared with e.
func aged(e *federationpb.Envelope, since time.Duration) *federationpb.Envelope {
	out := &federationpb.Envelope{
		Payload: e.GetPayload(), Signature: e.GetSignature(), Chain: e.GetChain(),
		RelayMs: e.GetRelayMs() + uint64(max(since, 0)/time.Millisecond) + 1,
	}
	out.ProtoReflect().SetUnknown(e.ProtoReflect().GetUnknown())
	return out
}
