package networkkey

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/isthmus-mesh/isthmus/federation/federationpb"
	"github.com/isthmus-mesh/isthmus/federation/record"
)

const (
	// MaxLifetime is how long a certificate may be valid: what a thief of an
	// instance's key can use it for.
	MaxLifetime = 24 * time.Hour

	// Tolerance is how far clocks of issuer and reader may differ at the end of a
	// certificate. A certificate of the future is accepted: only its issuer could
	// have dated it so, and it could as well issue another one then.
	Tolerance = 5 * time.Minute

	// MaxCertificate is the size of a signed certificate, in bytes.
	MaxCertificate = 1024

	// The contexts keep a signature over one thing from being taken for one over
	// another.
	certificateContext  = "isthmus-instance/1\x00"
	statementContext    = "isthmus-statement/1\x00"
	introductionContext = "isthmus-introduction/1\x00"
	recordContext       = "isthmus-record/1\x00"

	// nameContext is what the names of instances are hashes of, first.
	nameContext = "isthmus-instance-name/1\x00"
)

// Certificate is an instance whose key its network vouches for.
type Certificate struct {
	Network   string
	Gateway   string
	Instance  record.Instance
	NotBefore time.Time
	NotAfter  time.Time
	// By is the key of the network that has signed it.
	By Public

	key ed25519.PublicKey
}

// Verify says whether signature is the instance's over a statement.
func (c *Certificate) Verify(statement, signature []byte) bool {
	return ed25519.Verify(c.key, append([]byte(statementContext), statement...), signature)
}

// VerifyIntroduction says whether signature is the instance's over what binds an
// introduction to its connection.
func (c *Certificate) VerifyIntroduction(binding, signature []byte) bool {
	return ed25519.Verify(c.key, append([]byte(introductionContext), binding...), signature)
}

// Says says whether the instance of c has signed e, by its signature alone: e may be an
// old word of it. False if e has no signature.
func (c *Certificate) Says(e record.Entry) bool {
	statement, signature, ok := e.Signed(c.Network, c.Instance)
	return ok && ed25519.Verify(c.key, append([]byte(recordContext), statement...), signature)
}

// Is returns nil if c is of the instance that is called id, and a [*RefusedError]
// otherwise.
func (c *Certificate) Is(id record.Instance) error {
	if c.Instance == id {
		return nil
	}
	detail := fmt.Sprintf("is of instance %s, not of %s, which it came with", c.Instance, id)
	if sum := sha256.Sum256(c.key); record.Instance(sum[:16]) == id {
		detail = "came with the name that a version before November 22, 2026 gives to instance " + c.Instance.String() + ": update that gateway"
	}
	return &RefusedError{Malformed, c.Network, c.Gateway, detail}
}

// InstanceOf returns the name of the instance that holds a key and is a gateway of
// network. Everything that an instance signs says its name, which by this says its
// network: another network can certify the key, which everybody has, and not the name, so
// nothing that the instance has signed can be taken for the word of that network.
func InstanceOf(network, gateway string, key ed25519.PublicKey) record.Instance {
	b := []byte(nameContext)
	for _, part := range []string{network, gateway} { // of no two pairs the same
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...)
	}
	sum := sha256.Sum256(append(b, key...))
	return record.Instance(sum[:16])
}

// Instance is the key of one gateway process, with what its network has
// certified. Not safe for concurrent use.
type Instance struct {
	key         ed25519.PrivateKey
	id          record.Instance // zero until it is certified
	network     string          // that has certified it
	certificate []byte
	notBefore   time.Time
	notAfter    time.Time
}

// NewInstance draws the key of an instance from random.
func NewInstance(random io.Reader) (*Instance, error) {
	p, err := Generate(random)
	if err != nil {
		return nil, fmt.Errorf("draw instance: %w", err)
	}
	return &Instance{key: p.key}, nil
}

// ID returns the name of the instance, which it has once it is certified.
func (i *Instance) ID() record.Instance { return i.id }

// Certificate returns what its network has signed last, to be sent along.
func (i *Instance) Certificate() []byte { return i.certificate }

// Due says whether the certificate is to be renewed at now: half of its life has
// passed by the wall clock, by which others read it, or that clock was set back to
// before it was issued.
func (i *Instance) Due(now time.Time) bool {
	now = now.Round(0)
	return now.Before(i.notBefore) || i.notAfter.Sub(now) <= i.notAfter.Sub(i.notBefore)/2
}

// Sign returns the instance's signature over an encoded statement.
func (i *Instance) Sign(statement []byte) []byte {
	return ed25519.Sign(i.key, append([]byte(statementContext), statement...))
}

// SignIntroduction returns the instance's signature over what binds an introduction
// to its connection.
func (i *Instance) SignIntroduction(binding []byte) []byte {
	return ed25519.Sign(i.key, append([]byte(introductionContext), binding...))
}

// SignRecord returns e, which has its sequence and no signature yet, as the instance
// says it by itself, whoever passes it on: see [Certificate.Says].
func (i *Instance) SignRecord(e record.Entry) record.Entry {
	return e.SignWith(i.network, i.id, func(statement []byte) []byte {
		return ed25519.Sign(i.key, append([]byte(recordContext), statement...))
	})
}

// Certify makes network vouch for i as its gateway from now on, for lifetime. That gives i
// its name, and it is a gateway of no other network, nor another one, afterwards.
func (p Private) Certify(i *Instance, network, gateway string, now time.Time, lifetime time.Duration) error {
	if err := CheckName("network", network); err != nil {
		return fmt.Errorf("certify instance: %w", err)
	}
	if err := CheckName("gateway", gateway); err != nil {
		return fmt.Errorf("certify instance: %w", err)
	}
	if lifetime <= 0 || lifetime > MaxLifetime {
		return fmt.Errorf("certify instance of gateway %q: lifetime %v: want at most %v", gateway, lifetime, MaxLifetime)
	}
	key := i.key.Public().(ed25519.PublicKey)
	id := InstanceOf(network, gateway, key)
	if i.id != (record.Instance{}) && i.id != id {
		return fmt.Errorf("certify instance of gateway %q: instance %s is another gateway, or of another network: draw a new one", gateway, i.id)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&federationpb.Certificate{
		Network: network, Gateway: gateway, PublicKey: key, NotBefore: now.Unix(), NotAfter: now.Add(lifetime).Unix(),
	})
	if err != nil {
		return fmt.Errorf("certify instance of gateway %q: %w", gateway, err)
	}
	signed, err := proto.Marshal(&federationpb.SignedCertificate{Certificate: b, Signature: ed25519.Sign(p.key, append([]byte(certificateContext), b...))})
	if err != nil {
		return fmt.Errorf("certify instance of gateway %q: %w", gateway, err)
	}
	i.id, i.network, i.certificate, i.notBefore, i.notAfter = id, network, signed, time.Unix(now.Unix(), 0), time.Unix(now.Add(lifetime).Unix(), 0)
	return nil
}
