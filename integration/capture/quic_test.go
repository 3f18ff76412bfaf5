//go:build linux

package capture

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A captured pod calls across networks by QUIC. Packets to the gateway leave from the pod's own address,
// and no other pod's or the node's.
func TestQUICTunnelsBeginInThePod(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"vips", "all"} {
		t.Run(scope, func(t *testing.T) {
			t.Parallel()
			const quic = "lines: {transport: quic}\n"
			w := newWorldWith(t, quic, quic)
			if scope == "all" {
				w.write(t, "node-a.yaml", strings.Replace(w.node("a", admin, "shop-1", "shop-2"), "scope: vips", "scope: all", 1)+quic)
				must(t, w.nodes["node-a"].Stop(unix.SIGTERM, 10*time.Second))
				w.start(t, "node-a")
			}
			sources := w.udpSources(t, "gateway", 15008)
			var want []string
			for _, pod := range []string{"shop-1", "shop-2"} {
				want = append(want, addresses[pod])
				for range 3 {
					if text, err := w.call(pod, hello+":80"); err != nil || !strings.HasPrefix(text, "hello-") {
						t.Fatalf("%s: %q, %v", pod, text, err)
					}
				}
				if got := sources(); !slices.Equal(got, want) {
					t.Errorf("after calls of %s the gateway has packets by UDP from %v, want %v", pod, got, want)
				}
			}
		})
	}
}

// udpSources returns the addresses that UDP packets to a port of a host come from, as they arrive at its device.
func (w *world) udpSources(t *testing.T, host string, port uint16) func() []string {
	t.Helper()
	fd := -1
	must(t, w.In(host, func() (err error) {
		const ip = unix.ETH_P_IP<<8 | unix.ETH_P_IP>>8 // in network order
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, ip&0xffff)
		return err
	}))
	t.Cleanup(func() { unix.Close(fd) })
	seen := map[string]bool{}
	return func() []string {
		for b := make([]byte, 2048); ; {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				return slices.Sorted(maps.Keys(seen))
			}
			if h := int(b[0]&15) * 4; n >= h+8 && b[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(b[h+2:]) == port {
				seen[netip.AddrFrom4([4]byte(b[12:16])).String()] = true
			}
		}
	}
}
