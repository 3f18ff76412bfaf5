//go:build linux

package podns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxAddresses is how many addresses a namespace may have: who may change the network of a pod could have this process
	// run out of memory with them.
	maxAddresses = 4096
	// answerTime bounds a part of the kernel's answer, which takes less than a millisecond.
	answerTime = time.Second
)

// Addresses are those of the namespace's interfaces, loopback ones among them. That there are more than maxAddresses is an error.
func (n *Namespace) Addresses() (out []netip.Addr, err error) {
	err = n.Do(func() error {
		out, err = addresses()
		return err
	})
	return out, err
}

// addresses are those of the namespace that the thread is in. The library's read all of them at once, and all interfaces as well.
func addresses() (out []netip.Addr, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	limit, kernel := unix.NsecToTimeval(int64(answerTime)), &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	ask := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
	binary.NativeEndian.PutUint32(ask, uint32(len(ask)))
	binary.NativeEndian.PutUint16(ask[4:], unix.RTM_GETADDR)
	binary.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	err = errors.Join(
		os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)),
		os.NewSyscallError("connect", unix.Connect(fd, kernel)), // nobody else answers
		os.NewSyscallError("sendto", unix.Sendto(fd, ask, 0, kernel)),
	)
	if err != nil {
		return nil, err
	}
	for buffer := make([]byte, 64<<10); ; {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return nil, fmt.Errorf("addresses of interfaces: %w", err)
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return out, nil
			case unix.NLMSG_ERROR:
				return nil, fmt.Errorf("ask for the addresses of interfaces: %w", errorOf(m.Data))
			case unix.RTM_NEWADDR:
				a, err := addressOf(&m)
				if err != nil {
					return nil, fmt.Errorf("addresses of interfaces: %w", err)
				}
				if len(out) >= maxAddresses {
					return nil, fmt.Errorf("its network namespace has more than %d addresses: see which of its containers gives it so many (NET_ADMIN)", maxAddresses)
				}
				if a.IsValid() {
					out = append(out, a)
				}
			}
		}
	}
}

// errorOf is what the kernel says with an NLMSG_ERROR.
func errorOf(data []byte) error {
	if len(data) < 4 {
		return unix.EBADMSG
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
}

// addressOf is that of an interface, not that of the other end of a link, if it has one.
func addressOf(m *syscall.NetlinkMessage) (a netip.Addr, err error) {
	attributes, err := syscall.ParseNetlinkRouteAttr(m)
	for _, x := range attributes {
		if local := x.Attr.Type == unix.IFA_LOCAL; local || x.Attr.Type == unix.IFA_ADDRESS && !a.IsValid() {
			if found, ok := netip.AddrFromSlice(x.Value); ok {
				a = found.Unmap()
			}
		}
	}
	return a, err
}

// Interface returns the number of the interface called name, which is what a zone of an address means there.
func (n *Namespace) Interface(name string) (index int, err error) {
	err = n.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // any is one of the namespace
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		ask, err := unix.NewIfreq(name)
		if err == nil {
			err = os.NewSyscallError("ioctl SIOCGIFINDEX", unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ask))
		}
		if err != nil {
			return fmt.Errorf("interface %.40q of the pod: %w", name, err)
		}
		index = int(ask.Uint32())
		return nil
	})
	return index, err
}
