package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

var errDown = errors.New("the source is down")

func down(context.Context, spiffeid.ID) (*SVID, error) { return nil, errDown }

func mustGet(t *testing.T, m *Manager, id spiffeid.ID) *SVID {
	t.Helper()
	s, err := m.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("Get at %s: %v", time.Now(), err)
	}
	return s
}

func TestManyIdentitiesAtOnceAreIssuedOnceEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := CASource{CA: memoryCA(t, meshTD)}
		var mu sync.Mutex
		inFlight, most := 0, 0
		src := &fakeSource{answer: func(ctx context.Context, id spiffeid.ID) (*SVID, error) {
			mu.Lock()
			inFlight++
			most = max(most, inFlight)
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			inFlight--
			mu.Unlock()
			return ca.Fetch(ctx, id)
		}}
		m := NewManager(src, quietLog)
		const ids, callers = 40, 5
		got := make([][callers]*SVID, ids)
		var wg sync.WaitGroup
		for i := range ids {
			id := mustID(meshTD, "shop", fmt.Sprintf("sa-%d", i))
			for j := range callers {
				wg.Go(func() {
					s, err := m.Get(context.Background(), id)
					if err != nil || s.ID != id {
						t.Errorf("%s: %v", id, err)
					}
					got[i][j] = s
				})
			}
		}
		wg.Wait()
		for i, shared := range got {
			id := mustID(meshTD, "shop", fmt.Sprintf("sa-%d", i))
			if n := src.count(id); n != 1 {
				t.Errorf("%s was issued %d times, want once", id, n)
			}
			for _, s := range shared {
				if s != shared[0] {
					t.Errorf("%s: callers got different SVIDs", id)
				}
			}
		}
		if most != maxFetches {
			t.Errorf("%d fetches at once, want %d", most, maxFetches)
		}
	})
}

func TestRenewalAtHalfOfTheRemainingLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}.Fetch}
		m := NewManager(src, quietLog)
		startManager(t, m)
		first := mustGet(t, m, cartID)
		time.Sleep(30*time.Minute - time.Second)
		synctest.Wait()
		if n := src.count(cartID); n != 1 {
			t.Fatalf("%d fetches before half life, want 1", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := src.count(cartID); n != 2 {
			t.Fatalf("%d fetches after half life, want 2", n)
		}
		if second := mustGet(t, m, cartID); second.same(first) {
			t.Error("the renewed SVID is not served")
		}
	})
}

func TestFailingSourceLeavesTheValidCertificateInService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}
		src := &fakeSource{answer: ca.Fetch}
		m := NewManager(src, quietLog)
		startManager(t, m)
		first := mustGet(t, m, cartID)
		src.set(down)
		for range 59 {
			time.Sleep(time.Minute)
			if got := mustGet(t, m, cartID); got != first {
				t.Fatal("another SVID although the source is down")
			}
		}
		st := m.Status()
		if len(st) != 1 || st[0].Failures == 0 || !strings.Contains(st[0].Error, errDown.Error()) {
			t.Errorf("status %+v does not show the failure", st)
		}
		time.Sleep(2 * time.Minute)
		if _, err := m.Get(t.Context(), cartID); !errors.Is(err, errDown) {
			t.Errorf("expired and the source down: got %v, want its error", err)
		}
		src.set(ca.Fetch)
		time.Sleep(retries.Limit)
		synctest.Wait()
		if got := mustGet(t, m, cartID); got.same(first) {
			t.Error("not renewed after the source came back")
		}
	})
}

func TestBackoffSequence(t *testing.T) {
	for u, factor := range map[float64]float64{0: 0.5, 0.5: 0.75, 0.999999: 1} {
		t.Run(fmt.Sprint(factor), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &fakeSource{answer: CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}.Fetch}
				m := NewManager(src, quietLog, WithJitter(func() float64 { return u }))
				startManager(t, m)
				mustGet(t, m, cartID)
				src.set(down)
				time.Sleep(55 * time.Minute)
				synctest.Wait()
				at := src.instants()[1:] // the first one worked
				want := []float64{0.5, 1, 2, 4, 8, 16, 32, 64, 128, 150, 150, 150}
				if len(at) <= len(want)-4 {
					t.Fatalf("%d tries, want at least %d", len(at), len(want)-3)
				}
				for i := range min(len(at)-1, len(want)) {
					got := at[i+1].Sub(at[i]).Seconds()
					if w := want[i] * factor; got < w*0.9999 || got > w*1.0001 {
						t.Errorf("wait %d is %.3f s, want %.3f s", i+1, got, w)
					}
				}
			})
		})
	}
}

func TestFirstFailureIsNotRetriedByEveryCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: down}
		m := NewManager(src, quietLog, WithJitter(func() float64 { return 0.5 }))
		for range 100 {
			if _, err := m.Get(t.Context(), cartID); !errors.Is(err, errDown) {
				t.Fatalf("got %v, want the source's error", err)
			}
		}
		if n := src.count(cartID); n != 1 {
			t.Errorf("%d fetches within the backoff, want 1", n)
		}
		src.set(CASource{CA: memoryCA(t, meshTD)}.Fetch)
		time.Sleep(retries.First)
		mustGet(t, m, cartID) // works without Run, too
	})
}

func TestCallerThatGivesUpDoesNotEndTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := CASource{CA: memoryCA(t, meshTD)}
		src := &fakeSource{answer: func(ctx context.Context, id spiffeid.ID) (*SVID, error) {
			time.Sleep(time.Second)
			return ca.Fetch(ctx, id)
		}}
		m := NewManager(src, quietLog)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := m.Get(ctx, cartID); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want the caller's deadline", err)
		}
		mustGet(t, m, cartID)
		if n := src.count(cartID); n != 1 {
			t.Errorf("%d fetches, want 1", n)
		}
	})
}

func TestHangingSourceIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: func(ctx context.Context, _ spiffeid.ID) (*SVID, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		m := NewManager(src, quietLog)
		start := time.Now()
		_, err := m.Get(t.Context(), cartID)
		wantError(t, err, "did not answer within 10s", cartID.String())
		if got := time.Since(start); got != fetchTimeout {
			t.Errorf("after %s, want %s", got, fetchTimeout)
		}
	})
}

func TestRunEndsItsFetchesAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: func(ctx context.Context, _ spiffeid.ID) (*SVID, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}
		m := NewManager(src, quietLog)
		ctx, cancel := context.WithCancel(t.Context())
		ran, got := make(chan error, 1), make(chan error, 1)
		go func() { ran <- m.Run(ctx) }()
		go func() { _, err := m.Get(context.Background(), cartID); got <- err }()
		synctest.Wait()
		if err := m.Run(ctx); err == nil {
			t.Error("a second Run was accepted")
		}
		start := time.Now()
		cancel()
		if err := <-ran; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := <-got; !errors.Is(err, ErrStopped) {
			t.Errorf("waiting Get: %v, want ErrStopped", err)
		}
		if _, err := m.Get(t.Context(), stockID); !errors.Is(err, ErrStopped) {
			t.Errorf("Get after Run: %v, want ErrStopped", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("stopping took %s", d)
		}
	}) // a goroutine left behind fails the bubble
}

func TestStoppedManagerStillServesWhatIsValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewManager(CASource{CA: memoryCA(t, meshTD)}, quietLog)
		want := mustGet(t, m, cartID)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := m.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if got := mustGet(t, m, cartID); got != want {
			t.Error("a draining process lost its identity")
		}
	})
}

func TestBadRenewalNeverReplacesAGoodSVID(t *testing.T) {
	ca, other := memoryCA(t, meshTD), memoryCA(t, meshTD)
	for name, bad := range map[string]func() *SVID{
		"nothing":         func() *SVID { return nil },
		"incomplete":      func() *SVID { return &SVID{ID: cartID} },
		"another's":       func() *SVID { return issueSVID(t, ca, strayID, time.Hour) },
		"mislabelled":     func() *SVID { s := issueSVID(t, ca, strayID, time.Hour); s.ID = cartID; return s },
		"wrong key":       func() *SVID { s := issueSVID(t, ca, cartID, time.Hour); s.PrivateKey = other.key; return s },
		"unknown root":    func() *SVID { s := issueSVID(t, ca, cartID, time.Hour); s.Bundle = other.bundle; return s },
		"already expired": func() *SVID { return signed(t, ca, cartID, expired) },
	} {
		t.Run(name, func(t *testing.T) {
			src := &fakeSource{answer: func(context.Context, spiffeid.ID) (*SVID, error) { return bad(), nil }}
			_, err := NewManager(src, quietLog).Get(t.Context(), cartID)
			wantError(t, err, cartID.String())
		})
	}
}

func TestUnwantedFailuresAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: down}
		m := NewManager(src, quietLog)
		startManager(t, m)
		for i := range 50 {
			_, _ = m.Get(t.Context(), mustID(meshTD, "gone", fmt.Sprintf("sa-%d", i)))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if st := m.Status(); len(st) != 0 {
			t.Errorf("%d identities are kept that nobody has and nobody wants", len(st))
		}
	})
}

func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: CASource{CA: memoryCA(t, meshTD)}.Fetch}
		m := NewManager(src, quietLog)
		startManager(t, m)
		mustGet(t, m, cartID)
		m.Forget(cartID)
		time.Sleep(2 * time.Hour)
		if n := src.count(cartID); n != 1 {
			t.Errorf("%d fetches of a forgotten identity, want 1", n)
		}
		mustGet(t, m, cartID)
	})
}

func TestReplacedFilesAreServedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := memoryCA(t, meshTD)
		first := issueSVID(t, ca, cartID, time.Hour)
		writeSVID(t, dir, first)
		m := NewManager(FileSource{Dir: dir}, quietLog)
		startManager(t, m)
		if got := mustGet(t, m, cartID); !got.same(first) {
			t.Fatal("not the file's SVID")
		}
		second := issueSVID(t, ca, cartID, time.Hour)
		writeSVID(t, dir, second)
		time.Sleep(pollEvery + time.Millisecond)
		synctest.Wait()
		if got := mustGet(t, m, cartID); !got.same(second) {
			t.Error("still the old SVID after a second")
		}

		// Bad files do no harm, and good ones end the backoff.
		certPath, _ := writeSVID(t, dir, second)
		if err := replaceFile(certPath, []byte("oops"), 0o644); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		if got := mustGet(t, m, cartID); !got.same(second) {
			t.Error("a bad file replaced a good SVID")
		}
		third := issueSVID(t, ca, cartID, time.Hour)
		writeSVID(t, dir, third)
		time.Sleep(pollEvery + time.Millisecond)
		synctest.Wait()
		if got := mustGet(t, m, cartID); !got.same(third) {
			t.Error("the repaired files had to wait for the backoff")
		}
	})
}

func TestOneLinePerStateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ca := CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}
		src := &fakeSource{answer: ca.Fetch}
		m := NewManager(src, zerolog.New(&out).Level(zerolog.InfoLevel))
		startManager(t, m)
		mustGet(t, m, cartID)
		src.set(down)
		time.Sleep(50 * time.Minute)
		src.set(ca.Fetch)
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		got := []string{}
		for line := range strings.Lines(out.String()) {
			if !strings.Contains(line, cartID.String()) {
				t.Errorf("line without the identity: %s", line)
			}
			got = append(got, line[strings.LastIndex(line, `"message":`)+10:len(line)-2])
		}
		want := `["svid fetched" "svid not renewed" "svid renewed"]`
		if fmt.Sprint(got) != want {
			t.Errorf("lines %v, want %s", got, want)
		}
	})
}
