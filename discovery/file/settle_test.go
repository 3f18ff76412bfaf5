package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/settled"
)

func TestAStartWaitsForAFileThatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, path: filepath.Join(t.TempDir(), "mesh.yaml"), store: &discovery.Store{}}
		w.write("networks: [{name: one}]\n") // valid, but only the first half
		go func() {
			time.Sleep(settled.Pause / 2)
			w.write(two)
		}()
		if _, err := Open(w.path, w.store); err != nil {
			t.Fatal(err)
		}
		w.want("b", 1)
	})
}

// The file is on a server whose clock is ahead of this one's, and is rewritten in place:
// no part of it is believed, at a start or later, and the whole is as soon as it is left
// alone, not when our clock has come so far.
func TestAFileIsLeftAloneWhereItsServersClockIsAhead(t *testing.T) {
	const half = "networks: [{name: one}]\n"
	for name, ahead := range map[string]time.Duration{"a little": settled.Pause / 2, "seconds": 2 * time.Second, "a day": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dated := func(w *watched, content string) {
					w.write(content)
					if at := time.Now().Add(ahead); os.Chtimes(w.path, at, at) != nil {
						t.Error("no times")
					}
				}
				w := &watched{t: t, path: filepath.Join(t.TempDir(), "mesh.yaml"), store: &discovery.Store{}}
				dated(w, half)
				go func() {
					time.Sleep(settled.Pause / 2)
					dated(w, two)
				}()
				begun := time.Now()
				if _, err := Open(w.path, w.store); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begun); took > 3*settled.Pause {
					t.Errorf("a start takes %v", took)
				}
				w.want("b", 1)

				w = watch(t, one)
				w.after(10 * time.Second)
				for range int(DefaultEvery / (settled.Pause / 2)) { // whenever it is looked at
					dated(w, half)
					w.after(settled.Pause / 2)
					w.want("a", 1)
				}
				dated(w, two)
				w.after(3 * settled.Pause)
				w.want("b", 2)
			})
		})
	}
}

// keepWriting writes the file without a pause until the returned function is called.
func (w *watched) keepWriting(content string) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	w.write(content)
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			case <-time.After(settled.Pause / 5):
				w.write(content)
			}
		}
	}()
	return func() { close(end); <-done }
}

func TestAFileThatIsNeverLeftAloneIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10 * time.Second)
		stop := w.keepWriting(two)
		w.after(settled.Patience / 2)
		if s := w.Status(); s.Failing {
			t.Errorf("status %+v after %s; want some patience", s, settled.Patience/2)
		}
		w.after(settled.Patience + DefaultEvery)
		if s := w.Status(); !s.Failing || !strings.Contains(s.LastError, "never left alone") {
			t.Errorf("status %+v; want it failing", s)
		}
		w.after(10 * time.Second)
		if l := w.lines(); len(l) != 1 || l[0]["level"] != "error" || !strings.Contains(l[0]["error"].(string), "rename it") {
			t.Errorf("logged %v; want one error", l)
		}
		if _, err := Open(w.path, &discovery.Store{}); !errors.Is(err, errRestless) {
			t.Errorf("a start: %v, want that it is never left alone", err)
		}
		stop()
		w.after(5 * time.Second)
		w.want("b", 2)
		if s := w.Status(); s.Failing {
			t.Errorf("status %+v; want it in force", s)
		}
	})
}

// A FIFO without a writer would hold whoever opens it for ever.
func TestAFIFOIsNoDiscoveryFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10 * time.Second)
		os.Remove(w.path)
		if err := syscall.Mkfifo(w.path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(w.path, time.Now(), time.Now()); err != nil {
			t.Fatal(err)
		}
		w.after(5 * time.Second)
		if s := w.Status(); !s.Failing || !strings.Contains(s.LastError, "no regular file") {
			t.Errorf("status %+v; want that it is no regular file", s)
		}
		if _, err := Open(w.path, &discovery.Store{}); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("a start: %v; want that it is no regular file", err)
		}
		w.write(two) // replaces it
		w.after(5 * time.Second)
		w.want("b", 2)
	})
}

func TestReloadTellsOfAFileThatStillCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10 * time.Second)
		os.Remove(w.path)
		w.after(5 * time.Second)
		w.lines()
		for range 2 {
			w.Reload()
			w.after(time.Minute)
		}
		if l := w.lines(); len(l) != 2 || l[1]["message"] != "discovery file cannot be read, keeping the last good state" {
			t.Errorf("logged %v; want one line for each reload", l)
		}
	})
}
