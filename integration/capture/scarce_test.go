//go:build linux

package capture

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// scarce calls f while a process can open no file, as when others have taken all descriptors.
func scarce(t *testing.T, p *netspace.Process, f func()) {
	t.Helper()
	var was unix.Rlimit
	must(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &was))
	must(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: was.Max}, nil))
	defer func() { must(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &was, nil)) }()
	f()
}

// A node proxy that lacks descriptors for a while leaves no pod, and sets rules that were flushed meanwhile when it has some.
func TestNoPodIsLeftForLackOfDescriptors(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	w.serve(t, "gateway")
	held, err := w.Dial("shop-1", addresses["gateway"]+":8080") // passed on as it is
	must(t, err)
	defer held.Close()
	say := func(when string) {
		t.Helper()
		held.SetDeadline(time.Now().Add(2 * time.Second))
		if _, err := io.WriteString(held, "ping"); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		var all strings.Builder
		for !strings.HasSuffix(all.String(), "ping") {
			b := make([]byte, 100)
			n, err := held.Read(b)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			all.Write(b[:n])
		}
	}
	say("at first")
	scarce(t, w.nodes["node-a"], func() {
		time.Sleep(300 * time.Millisecond) // a few looks
		w.flush(t, "shop-1")
		time.Sleep(300 * time.Millisecond)
	})
	t.Logf("captured again %v after there were descriptors", w.isCaptured(t, 3*time.Second, "shop-1", hello+":80"))
	time.Sleep(2500 * time.Millisecond) // longer than timeouts.drain
	say("in the end")
	text, err := os.ReadFile(w.file("node-a.log"))
	must(t, err)
	if strings.Contains(string(text), "captured no more") {
		t.Error("a pod was left that is there still")
	}
}
