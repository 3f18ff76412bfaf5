package networkkey

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/isthmus-mesh/isthmus/federation/record"
)

const prefix = "ed25519:"

// Public is the key by which a network is known.
type Public [ed25519.PublicKeySize]byte

// String returns the form of files: "ed25519:" and the key in base64.
func (p Public) String() string { return prefix + base64.StdEncoding.EncodeToString(p[:]) }

// Fingerprint returns the first 16 hexadecimal digits of the key's SHA-256, for
// people to compare.
func (p Public) Fingerprint() string {
	sum := sha256.Sum256(p[:])
	return hex.EncodeToString(sum[:8])
}

// ParsePublic reads what String has written.
func ParsePublic(s string) (Public, error) {
	text, ok := strings.CutPrefix(s, prefix)
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != ed25519.PublicKeySize {
		return Public{}, fmt.Errorf("network key %.80q: want %s and 32 bytes in base64, as `isthmus network show` prints it", s, prefix)
	}
	return Public(b), nil
}

// Private is the secret half: whoever has it can be any gateway of the network
// towards other networks.
type Private struct{ key ed25519.PrivateKey }

// Generate draws a key from random.
func Generate(random io.Reader) (Private, error) {
	seed := make([]byte, ed25519.SeedSize)
	if _, err := io.ReadFull(random, seed); err != nil {
		return Private{}, fmt.Errorf("draw network key: %w", err)
	}
	return Private{ed25519.NewKeyFromSeed(seed)}, nil
}

// FromEd25519 wraps a key that was read from a file.
func FromEd25519(k ed25519.PrivateKey) Private { return Private{k} }

// Ed25519 returns the key for writing it to a file.
func (p Private) Ed25519() ed25519.PrivateKey { return p.key }

// Public returns the half that other networks list.
func (p Private) Public() Public { return Public(p.key.Public().(ed25519.PublicKey)) }

// MaxKeys is how many keys of one network are accepted: two while it is rotated.
const MaxKeys = 2

// Known is the networks that a reader knows and the keys that it accepts from
// each. It is not changed once it is in use.
type Known map[string][]Public

// Validate returns what cannot be: a name that is none, no key or more than
// two, a key twice. Two networks with one key could speak for each other.
func (k Known) Validate() error {
	owner := map[Public]string{}
	names := make([]string, 0, len(k))
	for name := range k {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := CheckName("network", name); err != nil {
			return err
		}
		if n := len(k[name]); n == 0 || n > MaxKeys {
			return fmt.Errorf("network %q has %d keys: want one, or two while it is rotated", name, n)
		}
		for _, p := range k[name] {
			if other, taken := owner[p]; taken && other == name {
				return fmt.Errorf("network %q: key %s is listed twice: remove one", name, p)
			} else if taken {
				return fmt.Errorf("network %q: key %s is that of network %q too: each network needs its own, made by `isthmus network init`", name, p, other)
			}
			owner[p] = name
		}
	}
	return nil
}

// CheckName rejects names that would garble a log line.
func CheckName(what, name string) error {
	if name == "" || len(name) > record.MaxName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return fmt.Errorf("%s %.80q: want 1 to %d printable ASCII characters without spaces", what, name, record.MaxName)
	}
	return nil
}
