package keyfile

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What operators have written at a network stays, whatever networks are new.
func TestRingsKeepWhatOperatorsHaveWritten(t *testing.T) {
	dir := t.TempDir()
	rings, err := InitAll(dir, []string{"east", "west"}, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	list := rings["east"].List
	b, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	wrote := strings.Replace(string(b), "  - name: \"west\"\n", "  - name: \"west\"\n    namespaces: [shop] # nobody else\n    maxCapacity: 7\n", 1)
	if wrote == string(b) {
		t.Fatalf("no west in %s", b)
	}
	if err := os.WriteFile(list, []byte(wrote), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, networks := range [][]string{{"east", "west"}, {"east", "west", "north"}, {"east"}} {
		if _, err := InitAll(dir, networks, rand.Reader); err != nil {
			t.Fatal(err)
		}
		if known, links, err := ReadLinks(list); err != nil || len(known) < 2 || links["west"].MaxCapacity != 7 || len(links["west"].Namespaces) != 1 {
			t.Errorf("with %v the link to west is %+v, %v; want what was written", networks, links["west"], err)
		}
	}
	if err := os.WriteFile(list, []byte("networks: ["), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := InitAll(dir, []string{"east"}, rand.Reader); err == nil {
		t.Error("a list that cannot be read is replaced")
	}
}

// network.yaml is a link to where the other networks read it.
func TestARotationWritesWhereALinkedListIs(t *testing.T) {
	dir, shared := t.TempDir(), filepath.Join(t.TempDir(), "west.yaml")
	if _, err := Init(dir, "west", rand.Reader); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, ListFile), shared); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(shared, filepath.Join(dir, ListFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, err := Finish(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	key, err := ReadKey(filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	known, err := ReadKnown(shared)
	if err != nil {
		t.Fatal(err)
	}
	if len(known["west"]) != 2 || known["west"][0] != key.Public() {
		t.Errorf("the key was rotated without an error, and the file that network.yaml led to has %d keys, not the one that signs", len(known["west"]))
	}
	if target, err := os.Readlink(filepath.Join(dir, ListFile)); err != nil || target != shared {
		t.Errorf("the list leads to %q, %v; want %q", target, err, shared)
	}
}
