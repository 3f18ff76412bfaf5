//go:build linux

package capture

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// Prefer has the kernel give l, the youngest of the listeners that share its address (Share) in a namespace, all
// connections from now on. The older ones are then idle when their processes close them: what is in the queue of a
// listener that is closed, its handshake done or not, is reset. When l is closed the others get connections again.
func Prefer(ns *podns.Namespace, l *net.TCPListener) error {
	group, err := sharers(ns, l)
	if err != nil {
		return err
	}
	// The kernel numbers them in the order in which they came, and goes by its hash where there is none of that number:
	// when one has been closed, the youngest takes its number.
	youngest := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(len(group) - 1)}}
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(youngest)), Filter: &youngest[0]}))
	}); e != nil {
		return e
	}
	return err
}

// Shared reports whether another process of ours listens where l does as well.
func Shared(ns *podns.Namespace, l *net.TCPListener) (bool, error) {
	group, err := sharers(ns, l)
	return len(group) > 1, err
}

// sharers are the listeners that share the address of l, itself among them.
func sharers(ns *podns.Namespace, l *net.TCPListener) ([]sockdiag.Listener, error) {
	t, err := sockdiag.Open(ns)
	if err != nil {
		return nil, fmt.Errorf("ask for the listeners of the pod: %w", err)
	}
	defer t.Close()
	first, ok, err := t.Listener(netip.MustParseAddrPort(l.Addr().String()))
	if err != nil || !ok {
		return nil, fmt.Errorf("ask for the listener %s of the pod (there: %v): %w", l.Addr(), ok, err)
	}
	group, err := t.Group(first)
	if err != nil {
		return nil, fmt.Errorf("ask for the listeners that share %s: %w", l.Addr(), err)
	}
	return group, nil
}

// Idle waits, within a time, until nothing is in the queue of l, which somebody goes on to accept from.
func Idle(l *net.TCPListener, within time.Duration) {
	raw, err := l.SyscallConn()
	if err != nil {
		return // closed already
	}
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
		waiting := uint32(0)
		err := raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
				waiting = info.Unacked // of a listener: connections in its queue
			}
		})
		if err != nil || waiting == 0 {
			return
		}
	}
}
