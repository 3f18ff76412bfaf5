package file

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/discovery"
	"github.com/isthmus-mesh/isthmus/internal/settled"
)

const (
	one   = "networks: [{name: one}]\nworkloads: [{uid: a, network: one, addresses: [10.0.0.1]}]\n"
	two   = "networks: [{name: one}]\nworkloads: [{uid: b, network: one, addresses: [10.0.0.1]}]\n" // same size
	wrong = "networks: [{name: one}]\nworkloads:\n- uid: c\n  capacity: onne\n  network: one\n  addresses: [10.0.0.1]\n"
)

// watched is a watcher that runs in a bubble of fake time over a real file.
type watched struct {
	t     *testing.T
	path  string
	store *discovery.Store
	log   *logged
	*Watcher
}

func watch(t *testing.T, content string) *watched { return watchFor(t, "", content) }

// watchFor is watch by a process on network.
func watchFor(t *testing.T, network, content string) *watched {
	t.Helper()
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "mesh.yaml"), store: &discovery.Store{}, log: &logged{}}
	w.write(content)
	var err error
	if w.Watcher, err = OpenFor(network, w.path, w.store); err != nil {
		t.Fatal(err)
	}
	w.Log = zerolog.New(w.log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// write replaces the file by rename and dates it by the bubble's clock.
func (w *watched) write(content string) {
	w.t.Helper()
	next := w.path + ".new"
	if err := os.WriteFile(next, []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Chtimes(next, time.Now(), time.Now()); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(next, w.path); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watched) after(d time.Duration) *watched {
	time.Sleep(d) // bubble time
	synctest.Wait()
	return w
}

func (w *watched) want(uid string, revision uint64) {
	w.t.Helper()
	s := w.store.Current()
	if s.Workload(uid) == nil || s.Revision != revision {
		w.t.Errorf("revision %d, workload %s found: %t; want revision %d with it", s.Revision, uid, s.Workload(uid) != nil, revision)
	}
}

// lines returns what was logged since the last call.
func (w *watched) lines() (lines []map[string]any) {
	w.t.Helper()
	for line := range strings.Lines(w.log.take()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			w.t.Fatalf("log line %q: %v", line, err)
		}
		lines = append(lines, m)
	}
	return lines
}

// logged is what was logged since it was last taken.
type logged struct {
	mu sync.Mutex // that the watcher is idle does not order what it writes later behind what was read before
	b  bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(line)
}

func (l *logged) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

func TestGoodChangeIsSwappedIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.want("a", 1)
		sub := w.store.Subscribe()
		defer sub.Close()
		w.after(10 * time.Second)
		w.write(two)
		w.after(DefaultEvery + settled.Pause)
		w.want("b", 2)
		select {
		case <-sub.C():
		default:
			t.Error("subscribers were not told")
		}
		if l := w.lines(); len(l) != 1 || l[0]["message"] != "discovery changed" || l[0]["revision"] != 2.0 || l[0]["workloads"] != 1.0 {
			t.Errorf("logged %v", l)
		}
	})
}

func TestBadChangeKeepsTheOldStateAndSaysWhichLineOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		before := w.store.Current()
		w.after(10 * time.Second)
		w.write(wrong)
		w.after(time.Minute)
		if w.store.Current() != before {
			t.Error("a bad file changed the state")
		}
		l := w.lines()
		if len(l) != 1 || l[0]["level"] != "error" || l[0]["message"] != "discovery file refused, keeping the last good state" {
			t.Fatalf("logged %v; want one error", l)
		}
		want := w.path + `:4: workloads[0].capacity: "onne": want a whole number from 0 to 4294967295`
		if got := l[0]["error"]; got != want {
			t.Errorf("got  %v\nwant %s", got, want)
		}
		if w.Rejected() != 1 {
			t.Errorf("rejected %d, want 1", w.Rejected())
		}

		w.write("")
		w.after(5 * time.Second)
		if l := w.lines(); len(l) != 1 || !strings.Contains(l[0]["error"].(string), "mesh.yaml:1: the file is empty") {
			t.Errorf("logged %v; want the file is empty", l)
		}

		w.write(one) // back to what is in force
		w.after(5 * time.Second)
		if w.store.Current() != before {
			t.Error("going back to the accepted content made a new snapshot")
		}
		if l := w.lines(); len(l) != 1 || l[0]["message"] != "discovery file is as it was last accepted" {
			t.Errorf("logged %v", l)
		}

		w.write(two)
		w.after(5 * time.Second)
		w.want("b", 2)
	})
}

func TestMissingFileKeepsTheOldState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10 * time.Second)
		if err := os.Remove(w.path); err != nil {
			t.Fatal(err)
		}
		w.after(time.Minute)
		w.want("a", 1)
		if l := w.lines(); len(l) != 1 || l[0]["message"] != "discovery file cannot be read, keeping the last good state" {
			t.Errorf("logged %v; want one error", l)
		}
		w.write(two)
		w.after(5 * time.Second)
		w.want("b", 2)
		if l := w.lines(); len(l) != 2 || l[0]["message"] != "discovery file can be read again" {
			t.Errorf("logged %v", l)
		}
	})
}

func TestFileBeingWrittenIsGivenTimeToSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10*time.Second - 10*time.Millisecond)
		w.write("networks: [{name: one}]\n") // valid, but only the first half
		w.after(20 * time.Millisecond)       // a look falls in here
		w.want("a", 1)
		w.write(two)
		w.after(DefaultEvery + settled.Pause)
		w.want("b", 2) // the half was never in force
	})
}

func TestSameSizeAndTimeIsStillSeenWhenTheFileIsYoung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		info, err := os.Stat(w.path)
		if err != nil {
			t.Fatal(err)
		}
		w.after(racy / 4)
		f, err := os.OpenFile(w.path, os.O_WRONLY, 0) // in place: the same file
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(two); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := os.Chtimes(w.path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		w.after(2 * DefaultEvery)
		w.want("b", 2)
	})
}

func TestAnotherFileOfTheSameSizeAndTimeIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		info, err := os.Stat(w.path)
		if err != nil {
			t.Fatal(err)
		}
		w.after(10 * time.Second) // by now the time alone is trusted
		next := w.path + ".new"
		if err := os.WriteFile(next, []byte(two), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(next, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, w.path); err != nil {
			t.Fatal(err)
		}
		w.after(2 * DefaultEvery)
		w.want("b", 2)
	})
}

func TestTouchedFileWithTheSameContentChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		before := w.store.Current()
		w.after(10 * time.Second)
		w.write(one)
		w.after(10 * time.Second)
		if w.store.Current() != before || len(w.lines()) != 0 {
			t.Error("a touched file made a new snapshot or a log line")
		}
	})
}

func TestFollowsTheLinksOfAMountedConfigMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		mount := func(version, content string) {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, version, "mesh.yaml"), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(version, filepath.Join(dir, "..tmp")); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
				t.Fatal(err)
			}
		}
		mount("..v1", one)
		path := filepath.Join(dir, "mesh.yaml")
		if err := os.Symlink("..data/mesh.yaml", path); err != nil {
			t.Fatal(err)
		}
		var store discovery.Store
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- Watch(ctx, path, time.Second, &store, zerolog.Nop()) }()
		synctest.Wait()
		mount("..v2", two)
		time.Sleep(3 * time.Second) // bubble time
		synctest.Wait()
		if store.Current().Workload("b") == nil {
			t.Error("the new version behind the links was not taken")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Watch = %v after cancel, want nil", err)
		}
	})
}

func TestFirstLoadMustSucceed(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte(wrong), 0o644); err != nil {
		t.Fatal(err)
	}
	var store discovery.Store
	for path, want := range map[string]string{
		bad:                                "bad.yaml:4: workloads[0].capacity",
		filepath.Join(dir, "nowhere.yaml"): "no such file",
		dir:                                "is a directory",
	} {
		if _, err := Open(path, &store); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open(%s) = %v; want %q in it", path, err, want)
		}
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s) = %v; want %q in it", path, err, want)
		}
		if err := Watch(t.Context(), path, 0, &store, zerolog.Nop()); err == nil {
			t.Errorf("Watch(%s) started", path)
		}
	}
	if len(store.Current().Workloads()) != 0 {
		t.Error("a refused file reached the store")
	}
}

func TestTooManyProblemsAreCounted(t *testing.T) {
	text := "networks: [{name: one}]\nworkloads:\n" + strings.Repeat("- {uid: a, network: one, addresses: [10.0.0.1]}\n", 100)
	_, err := Parse("mesh.yaml", []byte(text), 1)
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != maxProblems+1 || lines[maxProblems] != "mesh.yaml: and 79 more" {
		t.Errorf("got %d lines ending in %q; want %d and a count of 79", len(lines), lines[len(lines)-1], maxProblems+1)
	}
}

func TestReloadLooksAtOnceAndSaysWhatItFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, one)
		w.after(10*DefaultEvery + DefaultEvery/2) // no look falls into what follows
		w.Reload()
		w.after(0)
		if l := w.lines(); len(l) != 1 || l[0]["message"] != "discovery file is as it was last accepted" {
			t.Errorf("logged %v; want that nothing is new", l)
		}
		w.write(wrong)
		w.after(settled.Pause)
		w.Reload()
		w.after(0)
		w.Reload()
		w.after(0)
		if l := w.lines(); len(l) != 2 || l[0]["level"] != "error" || l[1]["level"] != "error" {
			t.Errorf("logged %v; want the same error for each reload", l)
		}
		w.write(two)
		w.Reload()
		w.after(settled.Pause)
		w.want("b", 2)
	})
}
