package controller

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/controller/vip"
)

// A webhook that changes what is written has it written a few times and not at the pace of plans, and an
// operator hears of it; other imports are written meanwhile, and when the webhook is gone all is as it should be.
func TestWhatAWebhookChangesIsNotFoughtOver(t *testing.T) {
	l, a := newLeader(t, Config{VIPs: ranges}, "demo")
	changed, other := vip.Name{Namespace: "demo", Name: "changed"}, vip.Name{Namespace: "demo", Name: "other"}
	a.admit = func(resource string, o map[string]any) {
		if resource == "serviceimports" && meta(o)["name"] == changed.Name {
			o["spec"].(map[string]any)["sessionAffinity"] = "ClientIP"
		}
	}
	l.offer(changed)
	plan := func() {
		t.Helper()
		if err := l.plan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	until := time.Now().Add(1500 * time.Millisecond)
	for time.Now().Before(until) {
		plan()
		time.Sleep(10 * time.Millisecond)
	}
	a.mu.Lock()
	wrote := a.wrote["update serviceimports"]
	a.mu.Unlock()
	if wrote > 12 { // of each the spec and the status
		t.Errorf("written %d times in 1.5 s", wrote)
	}
	if said := sentences(l.gates.held()); len(said) != 1 || !strings.Contains(said[0], "update demo/changed does not stay") || !strings.Contains(said[0], "webhook") {
		t.Errorf("said is %q", said)
	}
	l.offer(other)
	plan()
	if a.imported(other) == nil {
		t.Error("another import is not made")
	}
	a.mu.Lock()
	a.admit = nil
	a.mu.Unlock()
	for end := time.Now().Add(5 * time.Second); len(l.gates.held()) > 0; time.Sleep(5 * time.Millisecond) {
		for _, g := range l.gates.of {
			g.until = time.Time{} // its pause is over
		}
		plan()
		if time.Now().After(end) {
			t.Fatalf("the webhook is gone, and said is still %q", sentences(l.gates.held()))
		}
	}
	if affinity := a.imported(changed)["spec"].(map[string]any)["sessionAffinity"]; affinity == "ClientIP" {
		t.Error("the webhook is gone, and what it made is left")
	}
}

// However often the same is written, an operator who corrects something by hand once is no fight, other
// wants are none, and nothing of what was written long ago is kept.
func TestFightsAreOfTheSameWantInARow(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		f, now, n := newFights(), time.Unix(1_800_000_000, 0), vip.Name{Namespace: "demo", Name: "web"}
		last, times, at := 0, 0, time.Time{}
		for range 50 {
			want := rng.IntN(2)
			now = now.Add(time.Duration(rng.Int64N(int64(foughtWithin * 5 / 4))))
			if f.another("update", n, want) != (at.IsZero() || last != want) {
				t.Fatalf("want %d after %d: another is %t", want, last, f.another("update", n, want))
			}
			if !at.IsZero() && last == want && now.Sub(at) <= foughtWithin {
				times++
			} else {
				times = 0
			}
			last, at = want, now
			if got := f.did("update", n, want, now); got != (times >= foughtFrom) {
				t.Fatalf("written %d times before in a row: fought %t", times, got)
			}
		}
		if f.forget(now.Add(foughtWithin + 1)); len(f.of) != 0 {
			t.Fatal("what was written long ago is kept")
		}
	}
}

// Whoever deletes the ledger takes no address out of its quarantine: the leader writes it anew, and one that
// begins to lead gives no address that somebody may have had lately, while those in use stay.
func TestADeletedLedgerFreesNoAddress(t *testing.T) {
	l, a := newLeader(t, Config{VIPs: ranges}, "demo")
	stays, gone := vip.Name{Namespace: "demo", Name: "stays"}, vip.Name{Namespace: "demo", Name: "gone"}
	l.offer(stays)
	l.offer(gone)
	plan := func() {
		t.Helper()
		if err := l.plan(t.Context()); err != nil {
			t.Fatal(err)
		}
		clear(l.gates.of)
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
			if plan(); time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	ledger := func() string {
		a.mu.Lock()
		defer a.mu.Unlock()
		text, _ := a.objects["configmaps/isthmus-system/"+ledgerName]["data"].(map[string]any)["ledger"].(string)
		return text
	}
	lose := func() { a.mu.Lock(); defer a.mu.Unlock(); a.remove("configmaps/isthmus-system/" + ledgerName) }
	address := func(n vip.Name) string {
		ips, _ := a.imported(n)["spec"].(map[string]any)["ips"].([]any)
		if len(ips) == 0 {
			return ""
		}
		return ips[0].(string)
	}
	until("not imported", func() bool { return a.imported(stays) != nil && a.imported(gone) != nil })
	had := address(stays)
	l.exports.mu.Lock()
	delete(l.exports.of, gone)
	l.exports.mu.Unlock()
	released := func() bool { // a line with a time
		for line := range strings.Lines(ledger()) {
			if f := strings.Fields(line); f[1] == gone.String() && len(f) == 4 {
				return true
			}
		}
		return false
	}
	until("not given back", released)

	lose()
	late := vip.Name{Namespace: "demo", Name: "late"}
	l.offer(late)
	until("who leads does not make it anew", func() bool { return a.imported(late) != nil })
	if !released() {
		t.Errorf("who leads writes the ledger anew, and the address that was given back is out of its quarantine: %q", ledger())
	}

	lose()
	l.ledger, l.text = nil, l.client.Text(ledgerName) // another term
	later := vip.Name{Namespace: "demo", Name: "later"}
	l.offer(later)
	until("without an address it is not made", func() bool { return a.imported(later) != nil })
	if got := address(later); got != "" {
		t.Errorf("who begins to lead without a ledger gives %s, which somebody may have had", got)
	}
	if got := address(stays); got != had {
		t.Errorf("who had %s has %s", had, got)
	}
	if !strings.Contains(l.Controller.ledger, ledgerName) {
		t.Errorf("said is %q", l.Controller.ledger)
	}
}

// A service that others export and withdraw again and again is nobody's fight: its import is made and
// deleted by what is wanted.
func TestAnExportThatComesAndGoesIsNoFight(t *testing.T) {
	l, a := newLeader(t, Config{VIPs: ranges}, "demo")
	n := vip.Name{Namespace: "demo", Name: "web"}
	for i := range 5 {
		for _, wanted := range []bool{true, false} {
			l.exports.mu.Lock()
			delete(l.exports.of, n)
			l.exports.mu.Unlock()
			if wanted {
				l.offer(n)
			}
			for end := time.Now().Add(5 * time.Second); (a.imported(n) != nil) != wanted; time.Sleep(5 * time.Millisecond) {
				if err := l.plan(t.Context()); err != nil {
					t.Fatal(err)
				}
				if said := sentences(l.gates.held()); len(said) > 0 {
					t.Fatalf("round %d, wanted %v: said is %q", i, wanted, said)
				}
				if time.Now().After(end) {
					t.Fatalf("round %d: not done, wanted %v", i, wanted)
				}
			}
		}
	}
}

// A ledger that somebody empties is as one that is deleted, also under who leads: nobody gets an address that
// was given back a moment ago.
func TestAnEmptiedLedgerFreesNoAddress(t *testing.T) {
	for what, another := range map[string]bool{"the same process": false, "another": true} {
		l, a := newLeader(t, Config{VIPs: ranges}, "demo")
		stays, later := vip.Name{Namespace: "demo", Name: "stays"}, vip.Name{Namespace: "demo", Name: "later"}
		made := func(n vip.Name) {
			t.Helper()
			for end := time.Now().Add(5 * time.Second); a.imported(n) == nil; time.Sleep(5 * time.Millisecond) {
				_ = l.plan(t.Context()) // the ledger is not what was read
				clear(l.gates.of)
				if time.Now().After(end) {
					t.Fatalf("%s: %s is not imported", what, n)
				}
			}
		}
		l.offer(stays)
		made(stays)
		a.mu.Lock()
		key := "configmaps/isthmus-system/" + ledgerName
		empty := clone(a.objects[key])
		delete(empty, "data")
		a.put(key, empty, true)
		a.mu.Unlock()
		if another {
			l.ledger, l.text = nil, l.client.Text(ledgerName)
		}
		l.offer(later)
		made(later)
		if ips, _ := a.imported(later)["spec"].(map[string]any)["ips"].([]any); len(ips) > 0 {
			t.Errorf("%s: %v, which somebody may have had, are given", what, ips)
		}
	}
}
