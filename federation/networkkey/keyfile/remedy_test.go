package keyfile

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// The remedy for a next key that cannot be used, when other networks do not list it: remove
// it and rotate again. Whoever does that has a rotation under way.
func TestTheRemedyForANextKeyThatCannotBeUsedWorks(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(dir, "west", rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, rand.Reader); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(dir, NextFile)
	if err := os.Truncate(next, 40); err != nil { // a copy of the directory that was cut off
		t.Fatal(err)
	}
	_, err := Rotate(dir, rand.Reader)
	if err == nil || !strings.Contains(err.Error(), "remove "+next+" and say `isthmus network rotate --dir "+dir+"` again") {
		t.Fatalf("the remedy is another one: %v", err)
	}
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	lost, err := Open(dir)
	if err != nil || lost.Step() != Lost || lost.Old != nil || !strings.Contains(lost.Remaining(), lost.Lost.Fingerprint()+", is listed, and no file has it") {
		t.Errorf("the directory is taken for %s: %q, %v", lost.Step(), lost.Remaining(), err)
	}
	if _, err := Finish(dir, time.Now()); !errors.Is(err, ErrNotRotating) {
		t.Errorf("finished without the key: %v", err)
	}
	d, err := Rotate(dir, rand.Reader)
	if err != nil {
		t.Fatalf("as the remedy says, and: %v\nthe directory is taken for %s: %s", err, d.Step(), d.Remaining())
	}
	again, err := Open(dir)
	if err != nil || !reflect.DeepEqual(again, d) || again.Step() != Offered || len(again.Public()) != 2 || slices.Contains(again.Public(), *lost.Lost) {
		t.Errorf("rotated: %s, %v, %v; want another key in the place of the lost one", again.Step(), again.Public(), err)
	}
	if d, err = Finish(dir, time.Now()); err != nil || d.Step() != Replaced || *d.Old != lost.Key.Public() {
		t.Errorf("finished: %s, %v", d.Step(), err)
	}
}

// A stale time, as a Forget leaves it that was interrupted, makes no lost key an old one.
func TestALostKeyAfterAnotherRotationIsNoOldOne(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(dir, "west", rand.Reader); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, FinishedFile), []byte("2026-03-01T12:00:00Z\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, rand.Reader); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, NextFile)); err != nil {
		t.Fatal(err)
	}
	if d, err := Open(dir); err != nil || d.Step() != Lost {
		t.Errorf("the directory is taken for %s, %v", d.Step(), err)
	}
}

// A rotation that was interrupted before its key was listed is not said to have listed it.
func TestAnInterruptedRotationIsNotSaidToBeListed(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(dir, "west", rand.Reader); err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(dir, ListFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, rand.Reader); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ListFile), list, 0o644); err != nil { // it came as far as the key
		t.Fatal(err)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if what, want := d.Remaining(), "the next key is made, and not listed: isthmus network rotate --dir "+dir; d.Step() != Begun || what != want {
		_, finish := Finish(dir, d.Finished)
		t.Errorf("%s: said to be done next: %q, want %q\nwhoever finishes it is told: %v", d.Step(), what, want, finish)
	}
	if d, err := Rotate(dir, rand.Reader); err != nil || d.Step() != Offered {
		t.Errorf("%s, %v", d.Step(), err)
	}
}
