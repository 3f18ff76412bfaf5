//go:build linux

package capture

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// A router on the way to one pod of a service has lost its route and sends ICMP. That pod is ejected, and calls do not go on
// to need a second attempt.
func TestPodBehindRouterWithoutRouteIsEjected(t *testing.T) {
	for name, route := range map[string]string{"network unreachable": "throw", "host unreachable": "unreachable"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			must(t, w.Host("all", "router", "10.71.8.1"))
			must(t, w.In("router", func() error {
				return command("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.icmp_ratelimit=0", "net.ipv4.icmp_msgs_per_sec=100000", "net.ipv4.icmp_msgs_burst=10000")
			}))
			w.until(t, 10*time.Second, "shop-1", local+":80", answered)
			must(t, w.IP("router", "route add "+route+" "+addresses["shop-2"]+"/32"))
			must(t, w.IP("shop-1", "route add "+addresses["shop-2"]+"/32 via 10.71.8.1"))
			must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 10*time.Second)) // and its sessions
			must(t, os.Remove(w.file("node-a.log")))
			w.start(t, "node-a")
			for range 80 {
				if _, err := w.call("shop-1", local+":80"); err != nil {
					t.Errorf("a call failed although shop-1 serves the service: %v", err)
				}
				time.Sleep(25 * time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond)
			again, all := 0, 0
			for _, l := range w.lines(t, "node-a") {
				if l["direction"] != "outbound" {
					continue
				}
				if all++; l["attempts"] != float64(1) && l["attempts"] != nil {
					again++
				}
			}
			if all < 80 || again > 5 { // 2 failures in a row eject; 42 of 120 without that
				t.Errorf("%d of %d calls needed a second attempt, want 5 at most", again, all)
			}
		})
	}
}
