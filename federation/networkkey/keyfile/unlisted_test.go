package keyfile

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// key.pem is another one than network.yaml lists: a restored backup, half a copy, two
// versions of a Secret. Nobody would believe what it certifies.
func TestAKeyThatTheListDoesNotHaveCertifiesNobody(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	listed, err := Init(dir, "west", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Init(other, "west", rand.Reader)
	if err == nil {
		err = os.Rename(filepath.Join(other, KeyFile), filepath.Join(dir, KeyFile))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = (Ring{Dir: dir}).Load("west", "federation.keys", "federation.networks")
	for _, want := range []string{"federation.keys: ", filepath.Join(dir, KeyFile), filepath.Join(dir, ListFile), listed.Key.Public().Fingerprint(), found.Key.Public().Fingerprint(), "restore the key"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if _, err := Rotate(dir, rand.Reader); err == nil {
		t.Error("it is rotated")
	}
}
