//go:build linux

package capture

import (
	"errors"
	"fmt"
	"os"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dialNetlink opens a socket of netlink in the namespace whose descriptor is fd, which hears the kernel alone.
func dialNetlink(family, fd int) (*netlink.Conn, error) {
	c, err := netlink.Dial(family, &netlink.Config{NetNS: fd})
	if err != nil {
		return nil, err
	}
	if err := hearKernel(c); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// hearKernel has a socket hear the kernel alone. Whoever has CAP_NET_ADMIN in a pod may send to any socket of netlink there:
// answers that are none, or so much that the kernel's have no room, and then the one who has asked waits for ever.
func hearKernel(c *netlink.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		if err = os.NewSyscallError("connect", unix.Connect(int(fd), &unix.SockaddrNetlink{Family: unix.AF_NETLINK})); err != nil {
			return
		}
		for none := error(nil); none == nil || errors.Is(none, unix.ENOBUFS) || errors.Is(none, unix.EINTR); { // what came before that
			_, _, none = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
		}
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	return nil
}
