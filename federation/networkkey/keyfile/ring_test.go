package keyfile

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRingsOfAMeshKnowEachOther(t *testing.T) {
	dir := t.TempDir()
	rings, err := InitAll(dir, []string{"east", "west"}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	again, err := InitAll(dir, []string{"east", "west", "north"}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name := range rings {
		key, known, err := again[name].Load(name, "keys", "networks")
		if err != nil {
			t.Fatal(err)
		}
		if len(known) != 3 || known[name][0] != key.Public() {
			t.Errorf("%s knows %v", name, known)
		}
	}
	// While a key is rotated the list may still have the present one alone.
	if _, err := Rotate(again["west"].Dir, rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, known, err := again["west"].Load("west", "keys", "networks"); err != nil || len(known["west"]) != 2 {
		t.Errorf("while rotating: %v, %v", known["west"], err)
	}
}

func TestRingMistakesNameFieldValueAndRemedy(t *testing.T) {
	dir := t.TempDir()
	rings, err := InitAll(dir, []string{"east", "west"}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := InitAll(t.TempDir(), []string{"west"}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("networks: [{name: east, keys: [rsa]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	east, west := rings["east"], rings["west"]
	for _, c := range []struct {
		name string
		ring Ring
		want []string
	}{
		{"no directory", Ring{}, []string{"keys: must be set", "isthmus network init", "--network west"}},
		{"a directory that is not there", Ring{Dir: dir + "/none"}, []string{"keys: ", dir + "/none", "isthmus network init"}},
		{"another network's", Ring{Dir: east.Dir}, []string{"keys: ", `network "east"`, `serves "west"`}},
		{"a list that is not there", Ring{Dir: west.Dir, List: dir + "/none"}, []string{"networks: ", dir + "/none", "isthmus network show"}},
		{"a list that cannot be read", Ring{Dir: west.Dir, List: broken}, []string{"networks: ", "broken.yaml:1", "rsa"}},
		{"a list with another key of ours", Ring{Dir: west.Dir, List: other["west"].List}, []string{"networks: ", `network "west"`, "isthmus network show --dir " + west.Dir}},
	} {
		_, _, err := c.ring.Load("west", "keys", "networks")
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not say %q", c.name, err, w)
			}
		}
	}
}
