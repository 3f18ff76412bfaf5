package meshtest

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Patience is how long Eventually waits: machines that run tests are shared. It is
// shorter than what would mend in silence what a test waits for (what nobody renews is
// believed for a minute).
const Patience = 30 * time.Second

// Eventually asks until true, and fails the test when Patience is over.
func Eventually(t testing.TB, what string, ask func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for !ask() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, Patience)
		}
		pause(5 * time.Millisecond)
	}
}

// pause waits between two questions to something that cannot be waited for.
func pause(d time.Duration) { <-time.After(d) }

// ours are the packages whose goroutines must not outlive a mesh.
var ours = []string{
	"isthmus/gateway.", "isthmus/nodeproxy.", "isthmus/hbone.", "isthmus/federation/", "isthmus/identity.", "isthmus/discovery/",
	"isthmus/internal/reprobe.", "isthmus/internal/admin.", "isthmus/drill/", "isthmus/internal/meshtest.(*Wire", "isthmus/internal/meshtest.(*Server",
}

// alive counts the meshes of tests that run beside each other.
var alive atomic.Int32

// leaked returns the stacks of goroutines that run code of ours. Those of a synctest bubble are another test's, which
// fails itself if they stay.
func leaked() []string {
	buf := make([]byte, 8<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for i, g := range strings.Split(string(buf), "\n\n") {
		header, _, _ := strings.Cut(g, "\n")
		if i == 0 || strings.Contains(header, "synctest bubble") || strings.Contains(g, "testing.tRunner(") || strings.Contains(g, "testing.(*B).") {
			continue // the test itself
		}
		for _, p := range ours {
			if strings.Contains(g, p) {
				out = append(out, g)
				break
			}
		}
	}
	return out
}

// noLeaks fails the test if code of ours still runs somewhat later. Whose it is cannot be told while other meshes are
// there: the last of them looks.
func noLeaks(t testing.TB) {
	t.Helper()
	if alive.Add(-1) > 0 {
		return
	}
	deadline := time.Now().Add(Patience)
	for {
		l := leaked()
		if len(l) == 0 || alive.Load() > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d goroutines are left behind, the first of them:\n%s", len(l), l[0])
			return
		}
		pause(20 * time.Millisecond)
	}
}
