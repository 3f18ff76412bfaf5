//go:build linux

package capture

import (
	"bytes"
	"os"
	"testing"
	"time"
)

// A pod that resolves names by another resolv.conf than was announced is answered by that one as soon as its processes
// are seen, and none of its connections is refused meanwhile.
func TestNoConnectionIsRefusedWhenAResolvConfIsAnotherOne(t *testing.T) {
	t.Parallel()
	w, pods := newStarting(t, 4, "")
	w.answersPlugins(t)
	for _, p := range pods {
		must(t, w.Host("all", p.host, p.address))
		if out, err := w.cni("ADD", p, "c-"+p.host, `"failurePolicy":"Fail",`); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		w.hasProcess(t, p) // its root is that of this machine, which resolves by other servers
	}
	for began, n := time.Now(), 0; ; n++ {
		for _, p := range pods {
			if _, err := w.call(p.host, hello+":80"); err != nil {
				t.Fatalf("call %d of %s, %v after the last pod has started: %v", n, p.host, time.Since(began), err)
			}
		}
		text, err := os.ReadFile(w.file("node-a.log"))
		must(t, err)
		if bytes.Count(text, []byte("another resolv.conf than was announced: they are answered by that")) == len(pods) {
			return
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("after %v pods are still answered by what was announced: this shows nothing:\n%s", time.Since(began), text)
		}
	}
}
