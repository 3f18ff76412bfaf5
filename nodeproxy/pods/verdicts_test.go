package pods

import (
	"context"
	"net/netip"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cnisocket"
)

// How many pods start without capture, as nobody told of them, is seen by who has no access to runtimes' logs.
func TestWhatThePluginIsAnsweredIsCounted(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	c := &Set{p: alone(), held: map[string]*Pod{}, failing: map[string]*lack{}, announced: map[string]*announcement{}, wake: make(chan struct{}, 1)}
	p := countedPlugins{plugins{c}, newVerdicts(r)}
	for i, path := range []string{"/proc/self/ns/net", "/proc/self/ns/net", "/dev/null"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 0) // discovery knows nobody
		want := []cnisocket.Verdict{cnisocket.Unknown, cnisocket.Unknown, cnisocket.Refused}[i]
		if got := p.Add(ctx, cnisocket.Request{UID: "u", Container: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}, f); got.Verdict != want {
			t.Errorf("the reply is %+v, want %s", got, want)
		}
		cancel()
	}
	for v, want := range map[cnisocket.Verdict]float64{cnisocket.Captured: 0, cnisocket.Outside: 0, cnisocket.Unknown: 2, cnisocket.Failed: 0, cnisocket.Stopping: 0, cnisocket.Refused: 1} {
		if got := testutil.ToFloat64(p.verdicts[v]); got != want {
			t.Errorf("%s is counted %v times, want %v", v, got, want)
		}
	}
	if n, err := testutil.GatherAndCount(r, "isthmus_cni_verdicts_total"); n != 6 || err != nil {
		t.Errorf("%d rows, %v; want one for each verdict, also at 0", n, err)
	}
}
