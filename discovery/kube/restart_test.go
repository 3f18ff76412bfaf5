package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

const lost = "s-1.shop.svc.cluster.local"

// versionedShops are n services in an etcd of resourceVersion 200, of which s-1 came last.
func versionedShops(n int) (out []runtime.Object) {
	for i := range n {
		s, slice, pod := shopOf(i)
		s.ResourceVersion, slice.ResourceVersion, pod.ResourceVersion = "50", "50", "50"
		if i == 1 {
			s.ResourceVersion, slice.ResourceVersion = "190", "191"
		}
		out = append(out, s, slice, pod)
	}
	return out
}

// forget lets the API server have nothing of a service but its pod.
func (w *world) forget(t *testing.T, i int) {
	t.Helper()
	s, slice, _ := shopOf(i)
	if err := errors.Join(w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("services"), "shop", s.Name),
		w.api.Tracker().Delete(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), "shop", slice.Name)); err != nil {
		t.Fatal(err)
	}
}

// life is a process with its cache at path, of four services; so many of the first ones that follow
// s-0 are gone, and lists are at a version.
func life(t *testing.T, path, version string, gone int) *world {
	t.Helper()
	w := prepare(t, versionedShops(4)...)
	for i := range gone {
		w.forget(t, i+1)
	}
	w.version.Store(version)
	w.saver.path = path
	return w
}

// first is a life in which nothing is missing yet.
func first(t *testing.T, path string) {
	t.Helper()
	w := life(t, path, "200", 0)
	w.run(t)
	after(time.Minute)
	w.stop()
}

// However often the process restarts, whatever it is away for and whether the API server answers: a
// service that a list has lacked is in force for holdFor from then on, and gone after that as soon
// as another list lacks it.
func TestHeldServiceGoesInTimeOverRestarts(t *testing.T) {
	for seed := range uint64(30) {
		path := filepath.Join(t.TempDir(), "cache")
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			first(t, path)
			const slack = 5 * time.Second // for a look, and to save that it is gone
			var since time.Time           // when a list lacked it first
			var story []string
			for end := time.Now().Add(time.Hour); time.Now().Before(end); {
				w := life(t, path, "300", 1)
				began, up := time.Now(), rng.IntN(3) > 0
				if !up {
					w.refuse(errors.New("connection refused"))
				} else if since.IsZero() {
					since = began
				}
				w.run(t)
				lives := slack + time.Duration(rng.Int64N(int64(9*time.Minute)))
				story = append(story, fmt.Sprintf("%v: starts, with the API server: %v, for %v", began.UTC().Format(time.TimeOnly), up, lives))
				for time.Since(began) < lives {
					after(min(time.Second+time.Duration(rng.Int64N(int64(20*time.Second))), max(time.Second, lives-time.Since(began))))
					is := w.snapshot().Named(lost) != nil
					switch age := time.Since(since); {
					case !is && (since.IsZero() || age < holdFor):
						t.Fatalf("seed %d: gone after %v, want it to be held for %v\n%s", seed, age, holdFor, strings.Join(story, "\n"))
					case is && !since.IsZero() && age > holdFor+slack && up && time.Since(began) > slack:
						t.Fatalf("seed %d: held for %v, want %v\n%s", seed, age, holdFor, strings.Join(story, "\n"))
					}
				}
				w.stop()
				after(time.Duration(rng.Int64N(int64(3 * time.Minute))))
			}
		})
	}
}

// An API server that has gone backwards is told of once, what it lost is held for a day in all, and
// what is deleted later for no longer than ever.
func TestAPIServerGoesBackwardsOnceOverRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		first(t, path)
		began := time.Now()
		var log bytes.Buffer
		gone := 1
		for i := range 200 {
			w := life(t, path, fmt.Sprint(100+i/8), gone)
			w.log = zerolog.New(&log)
			w.run(t)
			after(8 * time.Minute)
			age := time.Since(began)
			if is := w.snapshot().Named(lost) != nil; is != (age <= restoredFor) {
				t.Fatalf("after %v it is in force: %v, want it to be held for %v", age, is, restoredFor)
			}
			if is := w.snapshot().Named("s-2.shop.svc.cluster.local") != nil; is != (gone == 1 || i == 10) {
				t.Errorf("life %d: a service that was deleted before life 10 is in force: %v, want it to be held for %v", i, is, holdFor)
			}
			w.stop()
			if i == 9 {
				gone = 2
			}
		}
		if n := strings.Count(log.String(), "has gone backwards"); n != 1 {
			t.Errorf("told %d times that the API server has gone backwards, want once", n)
		}
	})
}

// Beside a held pod that answers a service is held for longer, over restarts too.
func TestServiceOfHeldPodIsHeldOverRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		first(t, path)
		for i := range 8 {
			w := life(t, path, "300", 1)
			if err := w.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "shop", "p-01"); err != nil {
				t.Fatal(err)
			}
			w.probe = func(context.Context, string) bool { return i < 6 }
			w.run(t)
			for range 8 {
				after(30 * time.Second)
				if is := w.snapshot().Named(lost) != nil; is != (i < 6) {
					t.Fatalf("life %d: in force: %v; its pod answers: %v", i, is, i < 6)
				}
			}
			if st := w.Status(); i < 6 && !strings.Contains(strings.Join(st.Findings(), "\n"), "1 of 4 services are missing since 2000-01-01T00:01:0") {
				t.Errorf("life %d: findings %q, want the time when it was first missing", i, st.Findings())
			}
			w.stop()
		}
	})
}

// What was made anew while no process ran is not dropped before the list that has it is read.
func TestHeldServiceThatIsThereAgainAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		first(t, path)
		w := life(t, path, "300", 1)
		w.run(t)
		after(time.Minute)
		w.stop()
		after(time.Hour)
		x := life(t, path, "300", 0)
		x.refuse(errors.New("connection refused"))
		x.run(t)
		for range 30 {
			after(time.Second)
			if x.snapshot().Named(lost) == nil {
				t.Fatal("it is gone by the word of a cache")
			}
		}
		x.refuse(nil)
		after(2 * time.Minute)
		if st := x.Status(); x.snapshot().Named(lost) == nil || st.Held != "" {
			t.Errorf("a list has it: held %q, findings %q", st.Held, st.Findings())
		}
		x.stop()
	})
}

// rewrite changes the cache at path.
func rewrite(t *testing.T, path string, change func(h *cacheHeader, missing map[Event]cacheMissing)) {
	t.Helper()
	h, objects, missing, err := readCache(path)
	if err != nil || len(missing) == 0 {
		t.Fatalf("%d missing, %v", len(missing), err)
	}
	change(&h, missing)
	if err := writeCache(path, h, objects, missing); err != nil {
		t.Fatal(err)
	}
}

// A clock that goes backwards between two processes takes nothing away of how long a service has been
// held, and a cache from before that was written down begins anew.
func TestHeldServiceOfACacheOfAnotherTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	missingFor := func(missing map[Event]cacheMissing, ms int64) {
		for e, m := range missing {
			m.MS = ms
			missing[e] = m
		}
	}
	for what, x := range map[string]struct {
		change func(h *cacheHeader, missing map[Event]cacheMissing)
		held   time.Duration // from the restart on
	}{
		"a clock that was ahead": {func(h *cacheHeader, missing map[Event]cacheMissing) {
			h.Written = h.Written.Add(24 * time.Hour)
			missingFor(missing, (8 * time.Minute).Milliseconds())
		}, 2 * time.Minute},
		"an older format": {func(h *cacheHeader, missing map[Event]cacheMissing) { h.Written = time.Time{}; clear(missing) }, holdFor},
		"for ever":        {func(_ *cacheHeader, missing map[Event]cacheMissing) { missingFor(missing, math.MaxInt64) }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			first(t, path)
			w := life(t, path, "300", 1)
			w.run(t)
			after(time.Minute)
			w.stop()
			rewrite(t, path, x.change)
			y := life(t, path, "300", 1)
			y.run(t)
			after(max(0, x.held-10*time.Second))
			if x.held > 0 && y.snapshot().Named(lost) == nil {
				t.Errorf("%s: gone before %v", what, x.held)
			}
			after(20 * time.Second)
			if y.snapshot().Named(lost) != nil {
				t.Errorf("%s: held for longer than %v", what, x.held)
			}
			y.stop()
		})
	}
}

// A cache that could not be written is, once it can be, also when the API server has gone meanwhile; and what
// a process that was killed has left beside it goes.
func TestCacheIsWrittenWhileTheAPIServerIsAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	synctest.Test(t, func(t *testing.T) {
		w := life(t, filepath.Join(dir, "cache"), "200", 0)
		w.run(t)
		after(20 * time.Second)
		w.refuse(errors.New("connection refused"))
		w.cut()
		after(time.Second)
		away := time.Now()
		left := filepath.Join(dir, ".cache.123")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(left, nil, 0o600), os.Chtimes(left, away.Add(-time.Hour), away.Add(-time.Hour))); err != nil {
			t.Fatal(err)
		}
		after(time.Minute)
		if st := w.Status().Cache; st.Error != "" || st.Saved.IsZero() || st.Saved.After(away) {
			t.Errorf("the directory has been there for a minute, and the API server away since %v: %+v", away, st)
		}
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what a crash has left is there still: %v", err)
		}
		w.stop()
	})
}

// One of several API servers that lags behind when a process starts has not gone backwards: what was deleted
// meanwhile is held for no longer than ever.
func TestAPIServerThatLagsHasNotGoneBackwards(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	synctest.Test(t, func(t *testing.T) {
		first(t, path)
		began := time.Now()
		w := life(t, path, "189", 1) // the latest that the cache has is of 190 and 191
		var log bytes.Buffer
		w.log = zerolog.New(&log)
		w.run(t)
		after(5 * time.Second)
		s, slice, _ := shopOf(0)
		s.ResourceVersion, slice.ResourceVersion = "195", "196"
		_, err := w.api.CoreV1().Services("shop").Update(t.Context(), s, metav1.UpdateOptions{})
		_, other := w.api.DiscoveryV1().EndpointSlices("shop").Update(t.Context(), slice, metav1.UpdateOptions{})
		if err := errors.Join(err, other); err != nil {
			t.Fatal(err)
		}
		after(holdFor - time.Since(began) - 5*time.Second)
		if w.snapshot().Named(lost) == nil {
			t.Errorf("what the list lacked is gone after %v, want it to be held for %v", time.Since(began), holdFor)
		}
		after(time.Minute)
		if w.snapshot().Named(lost) != nil || strings.Contains(log.String(), "gone backwards") {
			t.Errorf("an API server that lagged for 5 s is taken for one that has gone backwards; held for %v still: %t", time.Since(began), w.snapshot().Named(lost) != nil)
		}
		w.stop()
	})
}

func TestCacheOfNegativeAgesIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	e := Event{Kind: ServiceExports, Namespace: "shop", Name: "s-1"}
	err := writeCache(path, cacheHeader{Network: "west"}, []Event{{ServiceExports, "shop", "s-1", struct{}{}}}, map[Event]cacheMissing{e: {MS: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := readCache(path); err == nil || !strings.Contains(err.Error(), "line 2: missing.ms -1") {
		t.Errorf("error %v, want one that names the field and its value", err)
	}
}

// A disk that is full for a moment leaves no old cache behind for minutes, and one that stays full is not
// written to all the time.
func TestCacheThatCannotBeWrittenIsTriedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	synctest.Test(t, func(t *testing.T) {
		w := life(t, filepath.Join(dir, "cache"), "200", 0)
		w.run(t)
		after(20 * time.Second)
		if w.Status().Cache.Error == "" {
			t.Fatal("there is no directory, and no error")
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		after(20 * time.Second)
		if st := w.Status().Cache; st.Error != "" || st.Saved.IsZero() {
			t.Errorf("the directory has been there for 20 s: %+v", st)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Hour)
		w.stop()
		if w.saver.failed < 24 || w.saver.failed > 60 {
			t.Errorf("tried %d times in two hours, want every few minutes", w.saver.failed)
		}
	})
}
