package demoapp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// synFilter is a classic BPF program over the TCP header, where the kernel
// (tcp_v4_rcv) hands a listener's packets to its filter: a segment with SYN is
// dropped, everything else passes, so that handshakes under way still finish.
// Accepted sockets inherit it, which does no harm: they see no SYN.
var synFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},         // A = TCP flags
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 2, Jf: 1}, // SYN set?
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
}

// dropSYN has the kernel drop new connections of the listener. It needs no privilege.
func dropSYN(l *net.TCPListener) error {
	prog := unix.SockFprog{Len: uint16(len(synFilter)), Filter: &synFilter[0]}
	return withFD(l, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
	})
}

// keepSYN undoes dropSYN; without a filter it does nothing.
func keepSYN(l *net.TCPListener) error {
	err := withFD(l, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// handshakes counts the half-open connections of a listener: those in SYN_RECV, as
// /proc/net/tcp and tcp6 have them, an address as numbers of 32 bits in the byte order of the machine.
func handshakes(listener netip.AddrPort) (n int, err error) {
	file, ip := "tcp", listener.Addr().AsSlice()
	if !listener.Addr().Is4() {
		file = "tcp6"
	}
	text, err := os.ReadFile("/proc/thread-self/net/" + file)
	if err != nil {
		return 0, fmt.Errorf("count half-open connections: %w", err)
	}
	local := ""
	for word := range slices.Chunk(ip, 4) {
		local += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	local += fmt.Sprintf(":%04X", listener.Port())
	for line := range strings.Lines(string(text)) {
		// sl, local_address, rem_address, st
		if f := strings.Fields(line); len(f) > 3 && f[1] == local && f[3] == "03" {
			n++
		}
	}
	return n, nil
}

// takeQueue accepts what waits in the listener's queue, without waiting.
func takeQueue(l *net.TCPListener) ([]net.Conn, error) {
	var out []net.Conn
	err := withFD(l, func(fd int) error {
		for {
			nfd, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			switch {
			case errors.Is(err, unix.EAGAIN):
				return nil
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
				continue
			case err != nil:
				return fmt.Errorf("accept: %w", err)
			}
			f := os.NewFile(uintptr(nfd), "accepted")
			c, err := net.FileConn(f)
			f.Close()
			if err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			out = append(out, c)
		}
	})
	return out, err
}

func withFD(l *net.TCPListener, do func(fd int) error) error {
	rc, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var derr error
	if err := rc.Control(func(fd uintptr) { derr = do(int(fd)) }); err != nil {
		return err
	}
	return derr
}
