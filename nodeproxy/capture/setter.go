//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// Setter is a process that sets rules in a pod. Of those that are there at the same time the one that began last counts.
type Setter struct {
	Began  uint64 // when the process began, in nanoseconds since its host did
	Socket uint64 // the cookie of its listener for tunnels in the pod
}

// Now is when a process begins that does so now, as Began has it.
func Now() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return uint64(now.Nano()), nil
}

// Cookie is that of a listener.
func Cookie(l *net.TCPListener) (cookie uint64, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	if e := raw.Control(func(fd uintptr) { cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE) }); e != nil {
		return 0, e
	}
	return cookie, os.NewSyscallError("getsockopt", err)
}

// The beginnings of names of sets that have no other use.
const (
	ownerMark  = "owner-"
	setterMark = "setter-"
)

func (s Setter) name() string { return fmt.Sprintf("%s%x-%x", setterMark, s.Began, s.Socket) }

// Owner returns whose rules are in a namespace, of a node proxy that may have ended since; there is false if
// nobody's are. It tells that also of a table which somebody else has put more into.
func Owner(ns *podns.Namespace) (owner string, there bool, err error) {
	err = lookInto(ns, func(l looking) error {
		p, is, err := l.parts(table)
		if errors.Is(err, errNotAsOurs) {
			err = nil
		}
		there = is
		owner, _ = marks(p.sets)
		return err
	})
	return owner, there, err
}

// SetBy returns whose rules are in a namespace and who has set them, which is nobody if an older version has. A table that
// has far more than ours can have is nobody's, and so is that of who has not begun yet: some process of the pod has put that
// there, and may have put its name there too.
func SetBy(ns *podns.Namespace) (owner string, by Setter, there bool, err error) {
	err = lookInto(ns, func(l looking) error {
		p, is, err := l.parts(table)
		if errors.Is(err, errNotAsOurs) {
			err = nil
		}
		if !is || p.alien {
			return err
		}
		o, s := marks(p.sets)
		if now, err := Now(); err == nil && s.Began > now {
			return nil
		}
		owner, by, there = o, s, true
		return err
	})
	return owner, by, there, err
}
