package identity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func TestRequiredIdentityIsFetchedUnaskedAndStaysWhenItHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}.Fetch}
		m := NewManager(src, quietLog)
		if len(m.Missing()) != 0 {
			t.Error("something is missing although nothing is required")
		}
		startManager(t, m)
		m.Require(cartID, stockID)
		synctest.Wait()
		if got := m.Missing(); len(got) != 0 {
			t.Errorf("missing %q after a fetch that worked", got)
		}
		src.set(down)
		time.Sleep(5 * time.Hour) // nobody asks
		synctest.Wait()
		got := m.Missing()
		if len(got) != 2 || !strings.Contains(got[0], cartID.String()) || !strings.Contains(got[0], "expired at ") || !strings.Contains(got[0], errDown.Error()) {
			t.Errorf("missing %q; want both identities, since when and why", got)
		}
		var left float64
		for _, s := range m.Status() {
			left = min(left, time.Until(s.NotAfter).Seconds())
		}
		if left > -3600 {
			t.Errorf("expiry is %v s; want it negative, and shown", left)
		}
		const want = "# HELP isthmus_identity_missing Identities that this process needs, without a valid SVID.\n# TYPE isthmus_identity_missing gauge\nisthmus_identity_missing 2\n"
		if err := testutil.CollectAndCompare(NewMetrics(m), strings.NewReader(want), "isthmus_identity_missing"); err != nil {
			t.Error(err)
		}
		if n := testutil.CollectAndCount(NewMetrics(m), "isthmus_identity_expiry_seconds"); n != 1 {
			t.Errorf("%d samples of the expiry, want 1", n)
		}
		src.set(CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}.Fetch)
		time.Sleep(retries.Limit)
		synctest.Wait()
		if got := m.Missing(); len(got) != 0 {
			t.Errorf("missing %q after the source came back", got)
		}
		m.Require(cartID)
		if st := m.Status(); len(st) != 1 || st[0].ID != cartID {
			t.Errorf("known are %+v; want only what is required", st)
		}
	})
}

func TestRequiredIdentityThatNeverCameIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewManager(&fakeSource{answer: down}, quietLog)
		startManager(t, m)
		m.Require(cartID)
		time.Sleep(time.Hour)
		if got := m.Missing(); len(got) != 1 || !strings.Contains(got[0], errDown.Error()) {
			t.Errorf("missing %q; want the source's error", got)
		}
	})
}

func TestHandshakeWithoutAnOwnCertificateIsAnOwnError(t *testing.T) {
	m := NewManager(&fakeSource{answer: down}, quietLog)
	_, err := m.ClientTLS(t.Context(), cartID, []spiffeid.ID{stockID})
	var own *OwnError
	if !errors.As(err, &own) || own.ID != cartID || !errors.Is(err, errDown) {
		t.Errorf("got %v; want an *OwnError of %s with its cause", err, cartID)
	}
}

func TestReloadTakesAnotherCAAndKeepsTheOldOneIfItIsBad(t *testing.T) {
	td := meshTD
	_, first := initCA(t, td)
	second, secondDir := initCA(t, td)
	m, err := Config{Dir: first}.Open(quietLog)
	if err != nil {
		t.Fatal(err)
	}
	startManager(t, m)
	old := mustGet(t, m, cartID)
	copyFile(t, filepath.Join(secondDir, caKeyFile), filepath.Join(first, caKeyFile))
	m.Reload() // the certificate is still that of the first
	if got := mustGet(t, m, cartID); got != old {
		t.Error("a CA whose key and certificate differ was taken")
	}
	refusals := func(want int) {
		t.Helper()
		text := "# HELP isthmus_identity_reloads_refused_total Rejected reloads of the source; the previous content stays in force.\n" +
			"# TYPE isthmus_identity_reloads_refused_total counter\n" + fmt.Sprintf("isthmus_identity_reloads_refused_total %d\n", want)
		if err := testutil.CollectAndCompare(NewMetrics(m), strings.NewReader(text), "isthmus_identity_reloads_refused_total"); err != nil {
			t.Error(err)
		}
	}
	refusals(1)
	copyFile(t, filepath.Join(secondDir, caCertFile), filepath.Join(first, caCertFile))
	m.Reload()
	refusals(1)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if got := mustGet(t, m, cartID); got.Bundle.HasX509Authority(second.Certificate()) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("still the certificate of the old CA")
		}
	}
}

func TestReloadKeepsTheCAOfThisMesh(t *testing.T) {
	_, dir := initCA(t, meshTD)
	_, foreign := initCA(t, otherTD)
	m, err := Config{Dir: dir}.Open(quietLog)
	if err != nil {
		t.Fatal(err)
	}
	startManager(t, m)
	for _, name := range []string{caKeyFile, caCertFile} {
		copyFile(t, filepath.Join(foreign, name), filepath.Join(dir, name))
	}
	m.Reload()
	if err := m.CheckTrustDomain(meshTD.Name()); err != nil {
		t.Errorf("the CA of another mesh was taken: %v", err)
	}
	if got := mustGet(t, m, stockID); got.ID != stockID { // fetched after the reload
		t.Errorf("got %v", got.ID)
	}
	if err := m.src.(reloader).Reload(); err == nil || !strings.Contains(err.Error(), otherTD.Name()) || !strings.Contains(err.Error(), meshTD.Name()) {
		t.Errorf("got %v; want both trust domains named", err)
	}
}

// What a jump of the wall clock leaves: an SVID that is over while its renewal is
// hours away by the monotonic clock.
func TestRequiredIdentityIsFetchedSoonAfterAJumpOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := memoryCA(t, meshTD)
		m := NewManager(CASource{CA: ca, TTL: 10 * time.Hour}, quietLog)
		startManager(t, m)
		m.Require(cartID)
		synctest.Wait()
		m.mu.Lock()
		m.entries[cartID].svid = issueSVID(t, ca, cartID, MinTTL)
		m.mu.Unlock()
		time.Sleep(MinTTL + clockEvery)
		synctest.Wait()
		if got := m.Missing(); len(got) != 0 {
			t.Errorf("missing %q; want it fetched within %s", got, clockEvery)
		}
	})
}

func TestReloadDuringAFetchFetchesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}
		src := &fakeSource{answer: func(ctx context.Context, id spiffeid.ID) (*SVID, error) {
			time.Sleep(time.Second)
			return ca.Fetch(ctx, id)
		}}
		m := NewManager(src, quietLog)
		startManager(t, m)
		m.Require(cartID)
		time.Sleep(500 * time.Millisecond)
		m.Reload()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := src.count(cartID); n != 2 {
			t.Errorf("%d fetches; want one more after the one in flight", n)
		}
	})
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
