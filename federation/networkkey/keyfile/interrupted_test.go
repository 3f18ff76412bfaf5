package keyfile

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A next key that cannot be read, as one that was copied in part, stops no gateway: it
// signs nothing yet.
func TestANextKeyThatCannotBeReadStopsNoGateway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if _, err := Init(dir, "west", rand.Reader); err != nil {
			t.Fatal(err)
		}
		made, err := Rotate(dir, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		next := filepath.Join(dir, NextFile)
		whole, err := os.ReadFile(next)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, len(whole) / 2} {
			if err := os.WriteFile(next, whole[:size], 0o600); err != nil {
				t.Fatal(err)
			}
			key, known, err := (Ring{Dir: dir}).Load("west", "federation.keys", "federation.networks")
			if err != nil || key.Public() != made.Key.Public() || len(known["west"]) != 2 {
				t.Errorf("%d bytes: a gateway that starts: %v, %v", size, known, err)
			}
			d, err := Open(dir)
			if err != nil || d.NextError == nil || d.Step() != Offered || !strings.Contains(d.Remaining(), "remove "+next) {
				t.Errorf("%d bytes: %s, %q, %v; want what is wrong with the next key", size, d.Step(), d.Remaining(), err)
			}
			_, rotation := Rotate(dir, rand.Reader)
			_, finish := Finish(dir, time.Now())
			for _, err := range []error{rotation, finish} {
				if err == nil || !strings.Contains(err.Error(), "remove "+next) {
					t.Errorf("%d bytes: %v", size, err)
				}
			}
		}
	})
}

func TestAnInterruptedInitIsFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		made, err := Init(dir, "west", rand.Reader)
		if err == nil {
			err = os.Remove(filepath.Join(dir, ListFile)) // it came as far as the key
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Rotate(dir, rand.Reader); err == nil || !strings.Contains(err.Error(), "isthmus network init --dir "+dir) {
			t.Errorf("rotate: %v", err)
		}
		again, err := Init(dir, "west", rand.Reader)
		if err != nil || !reflect.DeepEqual(again, made) {
			t.Errorf("init again: %+v, %v; want the same key", again, err)
		}
		if d, err := Open(dir); err != nil || !reflect.DeepEqual(d, made) {
			t.Errorf("%+v, %v; want %+v", d, err, made)
		}
		if _, err := Init(dir, "west", rand.Reader); !errors.Is(err, fs.ErrExist) {
			t.Errorf("and once more: %v", err)
		}
	})
}

// A rotation that came no further than its key is begun by the next one: nobody has seen
// that key, so it must not sign.
func TestAnInterruptedRotationIsBegunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		made, err := Init(dir, "west", rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		list, err := os.ReadFile(filepath.Join(dir, ListFile))
		if err != nil {
			t.Fatal(err)
		}
		both, err := Rotate(dir, rand.Reader)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, ListFile), list, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Finish(dir, time.Now()); !errors.Is(err, ErrNotRotating) {
			t.Errorf("a key that nobody has seen signs: %v", err)
		}
		if again, err := Rotate(dir, rand.Reader); err != nil || !reflect.DeepEqual(again, both) {
			t.Errorf("rotated again: %+v, %v; want %+v", again, err, both)
		}
		if d, err := Finish(dir, time.Now()); err != nil || d.Key.Public() != both.Next.Public() || *d.Old != made.Key.Public() {
			t.Errorf("finished: %+v, %v", d, err)
		}
	})
}

// Of a key there is all or nothing, and of what is written on the way nothing stays.
func TestAKeyAppearsWhole(t *testing.T) {
	dir := t.TempDir()
	d, err := Init(dir, "west", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, KeyFile)
	if err := createKey(path, d.Key); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a key is replaced: %v", err)
	}
	if err := createKey(filepath.Join(dir, "none", KeyFile), d.Key); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{KeyFile, ListFile}; !slices.Equal(names, want) {
		t.Errorf("the directory has %v, want %v", names, want)
	}
}
