//go:build linux

package capture

import (
	"os"
	"strings"
	"testing"
	"time"
)

// A node proxy that cannot look for pods says so once, and not at each look.
func TestWhatCannotBeLookedForIsSaidOnce(t *testing.T) {
	t.Parallel()
	k := newKubelet(t)
	k.pod(t)
	k.publish(t)
	config, err := os.ReadFile(k.file("node-a.yaml"))
	must(t, err)
	proc := k.file("leaves") // it has to be there at the start
	must(t, os.Mkdir(proc, 0o700))
	k.write(t, "node-a.yaml", strings.Replace(string(config), k.proc, proc, 1))
	k.start(t, "node-a")
	must(t, os.Remove(proc))
	time.Sleep(2 * time.Second) // eight looks
	text, err := os.ReadFile(k.file("node-a.log"))
	must(t, err)
	if n := strings.Count(string(text), "cannot look for the network namespaces"); n != 1 {
		t.Errorf("it is said %d times in two seconds", n)
	}
}
