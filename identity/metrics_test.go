package identity

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetricsShowExpiryAndFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{answer: CASource{CA: memoryCA(t, meshTD), TTL: time.Hour}.Fetch}
		m := NewManager(src, quietLog)
		c := NewMetrics(m)
		want := func(text string) {
			t.Helper()
			if err := testutil.CollectAndCompare(c, strings.NewReader(text), "isthmus_identity_svids", "isthmus_identity_failing", "isthmus_identity_expiry_seconds"); err != nil {
				t.Error(err)
			}
		}
		const head = "# HELP isthmus_identity_failing Identities with a failed last fetch.\n# TYPE isthmus_identity_failing gauge\n" +
			"# HELP isthmus_identity_svids Valid SVIDs.\n# TYPE isthmus_identity_svids gauge\n"
		const expiry = "# HELP isthmus_identity_expiry_seconds Time until the first SVID expires; negative from then until it is replaced. Absent before the first SVID.\n# TYPE isthmus_identity_expiry_seconds gauge\n"
		want(head + "isthmus_identity_failing 0\nisthmus_identity_svids 0\n")
		mustGet(t, m, cartID)
		want(head + expiry + "isthmus_identity_failing 0\nisthmus_identity_svids 1\nisthmus_identity_expiry_seconds 3600\n")
		src.set(down)
		time.Sleep(61 * time.Minute)
		if _, err := m.Get(t.Context(), cartID); err == nil {
			t.Fatal("expired and the source down, and Get worked")
		}
		want(head + expiry + "isthmus_identity_failing 1\nisthmus_identity_svids 0\nisthmus_identity_expiry_seconds -60\n")
		if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}
		if ok, failed := m.fetched.Load(), m.failed.Load(); ok != 1 || failed != 1 {
			t.Errorf("%d fetches worked and %d failed, want 1 and 1", ok, failed)
		}
	})
}
