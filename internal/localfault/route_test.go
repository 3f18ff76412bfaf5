//go:build linux

package localfault

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// connectFailed is what a dial returns if connect(2) has failed, at once or by ICMP.
func connectFailed(errno syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", errno)}
}

// With a route on this host, the errnos of ICMP are the endpoint's. No ICMP of IPv4 gives EACCES.
func TestDialedBlamesPathBeyondRoute(t *testing.T) {
	for _, from := range []net.Addr{nil, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}} {
		d, to := net.Dialer{LocalAddr: from}, netip.MustParseAddrPort("127.0.0.1:15008")
		for errno, local := range map[syscall.Errno]bool{syscall.ENETUNREACH: false, syscall.EHOSTUNREACH: false, syscall.ECONNREFUSED: false, syscall.EACCES: true, syscall.EPERM: true, syscall.EADDRNOTAVAIL: true} {
			if err := Dialed(d, to, connectFailed(errno)); Is(err) != local {
				t.Errorf("from %v: Is(%v) = %t, want %t", from, err, !local, local)
			}
		}
	}
	if err := Dialed(net.Dialer{}, netip.AddrPort{}, nil); err != nil {
		t.Errorf("Dialed(nil) = %v", err)
	}
}

// Without a route on this host each dial fails locally, as with a route that refuses. It has the errnos of ICMP.
func TestDialedBlamesHostWithoutRoute(t *testing.T) {
	netspace.NeedRoot(t)
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Fatal("no network namespace: ", err)
	}
	for line := range strings.SplitSeq(`link set lo up
route add unreachable 10.1.0.0/16
route add prohibit 10.2.0.0/16
route add 10.3.0.0/16 dev lo
-6 route add unreachable fd01::/16 dev lo
-6 route add prohibit fd02::/16 dev lo
-6 route add fd03::/16 dev lo`, "\n") {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	for to, want := range map[string]syscall.Errno{
		"10.9.0.1:15008": syscall.ENETUNREACH, "10.1.0.1:15008": syscall.EHOSTUNREACH, "10.2.0.1:15008": syscall.EACCES,
		"[fd09::1]:15008": syscall.ENETUNREACH, "[fd01::1]:15008": syscall.EHOSTUNREACH, "[fd02::1]:15008": syscall.EACCES,
	} {
		d := net.Dialer{}
		_, err := d.Dial("tcp", to)
		if got := Dialed(d, netip.MustParseAddrPort(to), err); !Is(got) || !strings.Contains(got.Error(), want.Error()) {
			t.Errorf("%s without a route: Is(%v) = %t, want true with %v", to, got, Is(got), want)
		}
	}
	for _, to := range []string{"10.3.0.1:15008", "[fd03::1]:15008"} { // a router sends ICMP
		for _, errno := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EACCES} {
			addr := netip.MustParseAddrPort(to)
			if errno == syscall.EACCES && addr.Addr().Is4() {
				continue
			}
			if err := Dialed(net.Dialer{}, addr, connectFailed(errno)); Is(err) {
				t.Errorf("%s with a route: %v counts as a failure of this host", to, err)
			}
		}
	}
}
