package keyfile

import (
	"crypto/rand"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// onRead does something before the first byte is read.
type onRead struct {
	once sync.Once
	do   func()
}

func (r *onRead) Read(b []byte) (int, error) {
	r.once.Do(r.do)
	return io.ReadFull(rand.Reader, b)
}

// free reports whether nobody has locked dir.
func free(t *testing.T, dir string) bool {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Fatal(err)
	}
	return err == nil
}

// A rotation that begins and ends while another one is half done would leave a key.pem
// that the list lacks, so that no gateway starts.
func TestNobodyChangesADirectoryWhileItIsRotated(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(dir, "west", rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, err := Rotate(dir, &onRead{do: func() {
		if !free(t, dir) {
			return // others wait
		}
		t.Error("it is not locked")
		if _, err := Rotate(dir, rand.Reader); err != nil {
			t.Error(err)
		}
		if _, err := Finish(dir, time.Now()); err != nil {
			t.Error(err)
		}
	}}); err != nil {
		t.Error(err)
	}
	if _, err := Open(dir); err != nil {
		t.Error(err)
	}
	if !free(t, dir) {
		t.Error("it stays locked")
	}
}

// Whatever several people do at once, the directory can be used afterwards.
func TestSeveralWhoChangeADirectoryTakeTurns(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	var inits, rotations, finishes, forgets sync.Map
	for i := range 4 {
		all.Go(func() {
			if _, err := Init(dir, "west", rand.Reader); err == nil {
				inits.Store(i, true)
			}
			if _, err := Rotate(dir, rand.Reader); err == nil {
				rotations.Store(i, true)
			} else if !errors.Is(err, ErrRotating) {
				t.Errorf("rotate: %v", err)
			}
			if _, err := Finish(dir, time.Now()); err == nil {
				finishes.Store(i, true)
			} else if !errors.Is(err, ErrNotRotating) {
				t.Errorf("finish: %v", err)
			}
			if _, err := Forget(dir, time.Now(), true); err == nil {
				forgets.Store(i, true)
			} else if !errors.Is(err, ErrNoOldKey) {
				t.Errorf("forget: %v", err)
			}
		})
	}
	all.Wait()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	count := func(m *sync.Map) (n int) { m.Range(func(any, any) bool { n++; return true }); return n }
	if n := count(&inits); n != 1 {
		t.Errorf("%d have made it, want one", n)
	}
	if r, f, g := count(&rotations), count(&finishes), count(&forgets); r-f != map[bool]int{true: 1}[d.Next != nil] || f-g != map[bool]int{true: 1}[d.Old != nil] {
		t.Errorf("%d rotations, %d finishes, %d forgotten: and the directory is %s", r, f, g, d.Step())
	}
}
