package boundtoken

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/isthmus-mesh/isthmus/internal/tempfile"
)

// algorithms are those that an API server signs tokens with.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

const (
	// maxKeyBytes bounds the keys of an API server, and the file that they are kept in.
	maxKeyBytes = 256 << 10
	// keysFor is how long keys are believed after the API server has last had them: an
	// outage that is longer would be a stolen key's friend.
	keysFor = 24 * time.Hour
)

// keySet is by which keys a cluster signs tokens. The zero keySet has none.
type keySet struct {
	Issuer  string             `json:"issuer"`
	Fetched time.Time          `json:"fetched"` // when the API server last had these
	Keys    jose.JSONWebKeySet `json:"keys"`
}

// parseKeys reads what an API server says of its keys: its discovery document, and the
// set itself.
func parseKeys(configuration, set []byte, now time.Time) (keySet, error) {
	var doc struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(configuration, &doc); err != nil || doc.Issuer == "" {
		return keySet{}, fmt.Errorf("openid-configuration names no issuer: %w", errors.Join(err))
	}
	k := keySet{Issuer: doc.Issuer, Fetched: now}
	if err := json.Unmarshal(set, &k.Keys); err != nil {
		return keySet{}, fmt.Errorf("jwks: %w", err)
	}
	return k, k.check()
}

// check says whether k has keys, all of them public ones.
func (k keySet) check() error {
	if len(k.Keys.Keys) == 0 {
		return errors.New("jwks has no key")
	}
	for i, x := range k.Keys.Keys {
		if !x.Valid() || !x.IsPublic() {
			return fmt.Errorf("jwks: key %d is no public key", i+1)
		}
	}
	return nil
}

// fresh reports whether k may be believed at now.
func (k keySet) fresh(now time.Time) bool {
	return len(k.Keys.Keys) > 0 && now.Before(k.Fetched.Add(keysFor))
}

// errUnknownKey says that a token is signed by a key that is not in the set, perhaps a
// new one.
var errUnknownKey = errors.New("signed by a key that is not known")

// verify returns nil if a key of k has signed the token.
func (k keySet) verify(token string) error {
	s, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return fmt.Errorf("not signed as a token of a service account is: %w", err)
	}
	id := s.Signatures[0].Protected.KeyID
	keys := k.Keys.Key(id)
	if id == "" || len(keys) == 0 {
		return fmt.Errorf("key %.80q: %w", id, errUnknownKey)
	}
	body, err := payload(token)
	if err != nil {
		return err
	}
	for _, key := range keys {
		var signed []byte
		if signed, err = s.Verify(key); err == nil && bytes.Equal(signed, body) { // what is read is what is signed
			return nil
		}
	}
	return fmt.Errorf("key %.80q has not signed it: %w", id, err)
}

// readKeyFile returns what writeKeyFile has kept; without a file no key.
func readKeyFile(path string) (keySet, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return keySet{}, nil
	} else if err != nil {
		return keySet{}, err
	}
	if info.Size() > maxKeyBytes {
		return keySet{}, fmt.Errorf("%s has %d bytes: it is no file of ours, remove it", path, info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return keySet{}, err
	}
	var k keySet
	if err := json.Unmarshal(b, &k); err != nil {
		return keySet{}, fmt.Errorf("%s: %w: remove it", path, err)
	}
	if err := k.check(); err != nil || k.Issuer == "" {
		return keySet{}, fmt.Errorf("%s: no keys with their issuer: %w: remove it", path, errors.Join(err))
	}
	return k, nil
}

// writeKeyFile keeps k at path, replaced in one step.
func writeKeyFile(path string, k keySet) error {
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	f, err := tempfile.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
