//go:build linux

package capture

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A process of the pod that is not of the node proxy's user cannot listen where that does; one of the same user can.
func TestAProcessOfAnotherUserSharesNoPortOfTheNodeProxy(t *testing.T) {
	p := newPod(t)
	p.listen(t, "tcp", "[::]:15006")
	for uid, want := range map[uintptr]error{0: nil, 1000: unix.EADDRINUSE} {
		err := p.ns.Do(func() error {
			unix.RawSyscall(unix.SYS_SETFSUID, uid, 0, 0) // whose a socket is, of this thread
			defer unix.RawSyscall(unix.SYS_SETFSUID, 0, 0, 0)
			s, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			return errors.Join(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), unix.Bind(s, &unix.SockaddrInet6{Port: InboundPort}), unix.Listen(s, 1))
		})
		if !errors.Is(err, want) {
			t.Errorf("a process of user %d listens beside the node proxy: %v, want %v", uid, err, want)
		}
	}
}
