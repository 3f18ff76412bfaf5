//go:build linux

package netspace

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Tap puts a new port on a segment's bridge and returns its other end: one Read
// or Write is one Ethernet frame. Closing it removes the port.
func (s *Space) Tap(segment string) (*os.File, error) {
	s.mu.Lock()
	bridge := s.segments[segment]
	s.ports++
	name := fmt.Sprintf("tap%d", s.ports)
	s.mu.Unlock()
	if bridge == "" {
		return nil, fmt.Errorf("no segment %q", segment)
	}
	ns, err := os.Open("/run/netns/" + bridge)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var tap *os.File
	if err := in(ns, func() (err error) {
		tap, err = openTap(name)
		return err
	}); err != nil {
		return nil, fmt.Errorf("open TAP device on segment %s: %w", segment, err)
	}
	if err := ip(fmt.Sprintf("-n %s link set %s master br0 up", bridge, name)); err != nil {
		tap.Close()
		return nil, err
	}
	return tap, nil
}

// openTap makes a TAP device in the namespace of the calling thread.
func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	// Only now: the poller refuses a descriptor that has no device yet.
	return os.NewFile(uintptr(fd), "/dev/net/tun "+name), nil
}
