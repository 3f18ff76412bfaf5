//go:build linux

// Package replicas runs the real binaries with three gateways behind one address of a load
// balancer; see ../README.md. It needs root and ip. The variable REPLICAS says that it is wanted: without it, or
// without root, the test is skipped.
package replicas

import (
	"bytes"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// perSecond is how many connections are made.
const perSecond = 200

// Three replicas behind one address that takes turns, in another network than the client. One
// is cut off from its pods; one is killed, and comes again; then each is replaced in turn, and serves on for
// a while after it was told to stop. No connection fails.
func TestReplicasBehindOneAddressFailNothing(t *testing.T) {
	if os.Getenv("REPLICAS") == "" {
		t.Skip("NOT RUN: it needs root and a machine of its own: run `make replicas`")
	}
	if os.Geteuid() != 0 {
		t.Fatal("it needs root")
	}
	w, err := newWorld()
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if !t.Failed() {
			return
		}
		for why, n := range w.reasons() {
			t.Logf("%d × %s", n, why)
		}
	}()
	await(t, "a connection is made", func() bool { x := w.connect(); return x.failed == nil && x.cut == nil })
	await(t, "the client's node proxy knows three replicas", func() bool { return w.known(t) == 3 })

	x := w.traffic(perSecond)
	began := time.Now()
	var phases []phase
	next := func(what string, mayCut bool) {
		phases = append(phases, phase{what, began, time.Now(), mayCut})
		began = time.Now()
	}
	pass(2 * time.Second)
	next("undisturbed", false)

	w.cut(t, "gw-1", true)
	pass(8 * time.Second)
	next("gw-1 cut off from its pods", true)
	w.cut(t, "gw-1", false)
	pass(3 * time.Second)
	next("gw-1 back", true) // a pod that has given up a session meanwhile says so now

	if err := w.gateways["gw-2"].Stop(syscall.SIGKILL, patience); err != nil {
		t.Fatal(err)
	}
	pass(time.Second) // until the balancer notices
	w.lead("gw-1", "gw-3")
	pass(3 * time.Second)
	next("gw-2 killed", true)
	if err := w.startGateway("gw-2"); err != nil {
		t.Fatal(err)
	}
	w.lead("gw-1", "gw-2", "gw-3")
	pass(2 * time.Second)
	next("gw-2 back", false)

	behind := []string{"gw-1", "gw-2", "gw-3"}
	for i, fresh := range []string{"gw-4", "gw-5", "gw-6"} {
		old := behind[i]
		if err := w.list(fresh); err != nil {
			t.Fatal(err)
		}
		if err := w.startGateway(fresh); err != nil {
			t.Fatal(err)
		}
		w.lead(append(slices.Clone(behind), fresh)...)
		w.gateways[old].Signal(syscall.SIGTERM)
		pass(time.Second) // until the balancer leads there no more
		behind[i] = fresh
		w.lead(behind...)
		select {
		case <-w.gateways[old].Ended():
		case <-time.After(patience):
			t.Fatalf("%s has not ended after %v", old, patience)
		}
		next(old+" replaced by "+fresh, false)
	}
	pass(time.Second)
	next("all replaced", false)
	close(x.stop)
	x.work.Wait()
	for _, p := range phases {
		c := x.count(p.from, p.to)
		t.Logf("%s: %s", p.what, c)
		if c.failed > 0 || c.cut > 0 && (!p.mayCut || c.cut > c.made/100) || c.made < perSecond/2*int(p.to.Sub(p.from).Seconds()) {
			t.Errorf("%s, in %v: %s: %v", p.what, p.to.Sub(p.from).Round(time.Millisecond), c, c.err)
		}
	}
	t.Logf("all: %s", x.count(time.Time{}, time.Now()))
}

// phase is a part of the test. mayCut: what was open by the gateway that is lost is lost, and little more.
type phase struct {
	what     string
	from, to time.Time
	mayCut   bool
}

// known is how many gateways of the west the client's node proxy knows.
func (w *world) known(t *testing.T) int {
	t.Helper()
	state, err := w.Get("client", clientAdmin, "/state")
	if err != nil {
		return 0
	}
	n := 0
	for _, g := range []string{"gw-1", "gw-2", "gw-3"} {
		if bytes.Contains(state, []byte(`"name": "`+g+`"`)) {
			n++
		}
	}
	return n
}

// pass lets time pass, in which traffic shows what comes of it.
func pass(d time.Duration) { <-time.After(d) }

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); pass(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
