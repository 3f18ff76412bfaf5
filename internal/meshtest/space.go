package meshtest

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// lockPort is held on the last address of a /24 for as long as a test uses it.
const lockPort = 15007

// claims counts the /24s this process has asked for.
var claims atomic.Uint32

// claim finds a /24 of 127.130.0.0 to 127.229.255.255 that nobody uses, holds it until
// the test ends, and returns its first three bytes. Drills have addresses below those.
func claim(t testing.TB) [3]byte {
	t.Helper()
	used := inUse()
	var last error
	for range 64 {
		n := uint32(os.Getpid())*31 + claims.Add(1)
		p := [3]byte{127, byte(130 + n/251%100), byte(1 + n%251)}
		if used[p] {
			continue
		}
		lock, err := listen(netip.AddrPortFrom(netip.AddrFrom4([4]byte{p[0], p[1], p[2], 254}), lockPort))
		if err != nil {
			last = err
			continue
		}
		t.Cleanup(func() { lock.Close() })
		return p
	}
	t.Fatalf("find free loopback addresses 127.a.b.0/24: %v: the test needs Linux, where all of 127.0.0.0/8 is local", last)
	return [3]byte{}
}

// inUse lists the /24s of 127.0.0.0/8 in which some socket has its local
// address, as the kernel tells; nothing where it does not.
func inUse() map[[3]byte]bool {
	out := map[[3]byte]bool{}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] == "06" { // TIME_WAIT hinders nobody: Go sets SO_REUSEADDR
			continue
		}
		host, _, _ := strings.Cut(f[1], ":")
		v, err := strconv.ParseUint(host, 16, 32)
		if err == nil && byte(v) == 127 {
			out[[3]byte{127, byte(v >> 8), byte(v >> 16)}] = true
		}
	}
	return out
}

// listen opens a plain TCP listener: MPTCP sockets take no socket filter.
func listen(a netip.AddrPort) (*net.TCPListener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp4", a.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}
