//go:build linux

package capture

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// fewPorts gives pods 40 local ports, and has nodeproxy-b enter them anew.
func (w *world) fewPorts(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		must(t, w.In(pod, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40039"), 0o600)
		}))
	}
	w.restartB(t, "", pods...)
}

// ejectsNone fails the test if any process has ejected an application. The gateway
// ejects the hop while nodeproxy-b starts anew.
func (w *world) ejectsNone(t *testing.T, when string) {
	t.Helper()
	for _, host := range []string{"node-a", "node-b", "gateway"} {
		text, err := os.ReadFile(w.file(host + ".log"))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `"edge":"ejected"`) && !strings.Contains(line, `"scope":"hop"`) {
				t.Errorf("%s: %s ejects: %s", when, host, line)
			}
		}
	}
}

// With many more connections through one gateway address than the pods have ports,
// none fails, and the pods' own calls work.
func TestFewPortsFailNoConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fewPorts(t, "hello-1", "hello-2")
	w.serve(t, "gateway")
	for n := range 400 {
		if text, err := w.call("shop-1", hello+":80"); err != nil {
			t.Fatalf("call %d: %q, %v", n, text, err)
		}
		if n%40 == 0 {
			if text, err := w.call("hello-1", addresses["gateway"]+":8080"); err != nil {
				t.Fatalf("the pod's own call beside call %d: %q, %v", n, text, err)
			}
		}
	}
	w.ejectsNone(t, "after 400 calls")
	if err := w.sees("shop-1", hello+":80", addresses["gateway"]); err != nil {
		t.Error(err)
	}
}

// With more open connections than the pods have ports, further ones fail, and no
// pod is ejected. Once some close, others are served.
func TestPortShortageEjectsNoPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fewPorts(t, "hello-1", "hello-2")
	var held []net.Conn
	failed := 0
	for range 120 {
		c, err := w.Dial("shop-1", hello+":80")
		if err == nil {
			c.SetDeadline(time.Now().Add(5 * time.Second))
			_, err = c.Read(make([]byte, 1))
		}
		if err != nil {
			failed++
			continue
		}
		held = append(held, c)
	}
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	if len(held) < 60 || failed == 0 {
		t.Errorf("%d connections are open and %d failed; want at least 60 of 80 ports in use, and a shortage", len(held), failed)
	}
	w.ejectsNone(t, "while ports are short")
	for _, c := range held {
		c.Close()
	}
	w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
	for n := range 20 {
		if text, err := w.call("shop-1", hello+":80"); err != nil {
			t.Errorf("call %d after the shortage: %q, %v", n, text, err)
		}
	}
	w.ejectsNone(t, "after the shortage")
}
