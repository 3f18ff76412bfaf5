//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
	"github.com/isthmus-mesh/isthmus/nodeproxy/sockdiag"
)

// Prefer has the kernel give l, one of the listeners that share its address (Share) in a namespace, all connections from
// now on. The others are then idle when their processes close them: what is in the queue of a listener that is closed, its
// handshake done or not, is reset. When l is closed the others get connections again. last says that l is the one that was
// opened last, and none has been closed since: where the kernel, or what keeps processes from it, has no eBPF it works for
// that one alone.
func Prefer(ns *podns.Namespace, l *net.TCPListener, last bool) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	for range selectTries {
		if e := raw.Control(func(fd uintptr) { err = selectOnly(int(fd)) }); e != nil {
			return e
		}
		if !errors.Is(err, unix.EBUSY) {
			break
		}
		time.Sleep(selectAgain)
	}
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	if err == nil || !last || podns.Lacking(err) {
		return err
	}
	return preferLast(ns, l, raw)
}

// A listener is in one map of sockets at most. One that was preferred before is in that of its program, which the kernel frees
// some milliseconds after another program has taken its place; if it does not, none has, and the listener is still preferred.
const (
	selectTries = 20
	selectAgain = 5 * time.Millisecond
)

// preferLast is Prefer of the listener that came last: the kernel numbers them in the order in which they came, and moves
// the last one to where another is closed. It goes by its hash where there is none of a number.
func preferLast(ns *podns.Namespace, l *net.TCPListener, raw syscall.RawConn) error {
	group, err := sharers(ns, where(l))
	if err == nil && len(group) == 0 {
		err = fmt.Errorf("nobody listens at %s of the pod", l.Addr())
	}
	if err != nil {
		return err
	}
	return selectNumber(raw, len(group)-1)
}

// Yield makes the kernel send new connections to the other one of two listeners that share an address in the namespace of this
// process, until Prefer is called. l was opened last. Without eBPF, preferLast has set a number: after the other one moved to
// the place of a listener that was closed, it is that of l. What the kernel sends between listen(2) and Yield comes to l.
func Yield(l *net.TCPListener) error {
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	return selectNumber(raw, 0)
}

// selectNumber makes the kernel send connections to the n-th listener of the group.
func selectNumber(raw syscall.RawConn, n int) (err error) {
	program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(n)}}
	if e := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}))
	}); e != nil {
		return e
	}
	return err
}

// Shared reports whether another process of ours listens where l does as well, or did before it was closed.
func Shared(ns *podns.Namespace, l *net.TCPListener) (bool, error) {
	group, err := sharers(ns, where(l))
	own := 0
	if raw, err := l.SyscallConn(); err == nil && raw.Control(func(uintptr) {}) == nil {
		own = 1
	}
	return len(group) > own, err
}

// Sharers are the cookies of the listeners that share the address of l.
func Sharers(ns *podns.Namespace, l *net.TCPListener) (cookies []uint64, err error) {
	return SharersAt(ns, where(l))
}

// SharersAt are the cookies of the listeners that share address a.
func SharersAt(ns *podns.Namespace, a netip.AddrPort) (cookies []uint64, err error) {
	group, err := sharers(ns, a)
	for _, o := range group {
		cookies = append(cookies, o.Cookie)
	}
	return cookies, err
}

// Alive reports whether the process s listens at a still.
func Alive(ns *podns.Namespace, a netip.AddrPort, s Setter) (bool, error) {
	group, err := sharers(ns, a)
	return slices.ContainsFunc(group, func(o sockdiag.Listener) bool { return o.Cookie == s.Socket }), err
}

func where(l *net.TCPListener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }

// sharers returns the listeners that share address a in ns, or in the namespace of this process if ns is nil. It is empty
// if none listens there.
func sharers(ns *podns.Namespace, a netip.AddrPort) ([]sockdiag.Listener, error) {
	var in sockdiag.Namespace
	if ns != nil {
		in = ns
	}
	t, err := sockdiag.Open(in)
	if err != nil {
		return nil, fmt.Errorf("ask for the listeners of the pod: %w", err)
	}
	defer t.Close()
	first, ok, err := t.Listener(a)
	if err != nil {
		return nil, fmt.Errorf("ask for the listener %s of the pod: %w", a, err)
	}
	if !ok {
		return nil, nil
	}
	group, err := t.Group(first)
	if err != nil {
		return nil, fmt.Errorf("ask for the listeners that share %s: %w", a, err)
	}
	return group, nil
}

// Destroyed reports whether somebody else has ended l, which this process has not closed.
func Destroyed(l *net.TCPListener) bool {
	raw, err := l.SyscallConn()
	if err != nil {
		return false
	}
	destroyed := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
		destroyed = err == nil && info.State != unix.BPF_TCP_LISTEN
	})
	return err == nil && destroyed
}

// settledLooks is how many times in a row, a millisecond apart, a queue is to be seen empty. A handshake that began before
// another listener was preferred is in no queue yet; those through loopback take no millisecond, unless the machine is busy.
const settledLooks = 25

// Idle waits, within a time, until nothing is in the queue of l, which somebody goes on to accept from, and nothing has come
// for some 25 ms.
func Idle(l *net.TCPListener, within time.Duration) {
	raw, err := l.SyscallConn()
	if err != nil {
		return // closed already
	}
	empty := 0
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
		waiting := uint32(0)
		err := raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
				waiting = info.Unacked // of a listener: connections in its queue
			}
		})
		if empty++; waiting > 0 {
			empty = 0
		}
		if err != nil || empty == settledLooks {
			return
		}
	}
}
