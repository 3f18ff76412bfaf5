package lab

import (
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/drill/scenario"
)

// Four of ten connections are broken off; all others are as ever, and every
// connection is one thing: answered, failed, cut or broken off.
func TestConnectionsThatClientsBreakOffAreCountedApart(t *testing.T) {
	for _, exchange := range []string{"request", "banner"} {
		t.Run(exchange, func(t *testing.T) {
			t.Parallel()
			// A transfer before the break has a minute: on a busy machine 5 s are over before it.
			s := tinyScenario(t, "rate: 60", "rate: 60, abort: 40 %, timeout: 1m", "EXCHANGE", exchange, "FAULT", "kind: gatewayKill, target: {network: west, gateway: 1}") // the fakes do not use gateways
			planned := map[string]int{}
			for _, a := range scenario.Schedule(s, 1) {
				planned[a.Abort.How]++
				if a.Abort.How != "" && a.Hold > 0 {
					t.Error("a connection is to be held and broken off")
				}
			}
			if planned["reset"] < 10 || planned["close"] < 10 {
				t.Fatalf("planned %v: want both ways", planned)
			}
			r, _, err := run(t, t.Context(), s, nil)
			if err != nil {
				t.Fatal(err)
			}
			a := r.Arms[0]
			if a.Failed != 0 || a.Cut != 0 {
				t.Errorf("failed %d (%v), cut %d (%v); want none", a.Failed, a.FailedBy, a.Cut, a.Cuts)
			}
			if want := planned["reset"] + planned["close"]; a.Aborted != want {
				t.Errorf("%d broken off, want the %d that were planned", a.Aborted, want)
			}
		})
	}
}

// What fails before the client would have broken it off is a failure.
func TestAConnectionThatFailsBeforeItIsBrokenOffHasFailed(t *testing.T) {
	s := tinyScenario(t, "rate: 60", "rate: 60, abort: 100 %, timeout: 300ms", "FAULT", "kind: silent, target: {network: west, pods: all}")
	r, _, err := run(t, t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := r.Arms[0]
	if a.FailedBy["timeout"] < 10 || a.Aborted < 60 || a.Failed+a.Aborted+a.Cut != a.Attempts {
		t.Errorf("%d attempts: %d failed (%v), %d cut, %d broken off; want those failed that waited in vain, and the rest broken off",
			a.Attempts, a.Failed, a.FailedBy, a.Cut, a.Aborted)
	}
	if !strings.Contains(a.Faults[0].Proof, "stay silent") {
		t.Errorf("proof %q", a.Faults[0].Proof)
	}
}
