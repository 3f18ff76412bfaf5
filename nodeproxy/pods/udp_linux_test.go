package pods

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/localfault"
	"github.com/isthmus-mesh/isthmus/nodeproxy/capture"
)

// A UDP socket of a pod sends from the pod's address and has the mark that rules leave alone.
func TestUDPSocketIsInThePod(t *testing.T) {
	s, c := held(t)
	peer, err := s.ListenPacket("other", "10.71.1.2:15008")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	to := netip.MustParseAddrPort("10.71.1.2:15008")
	here := func(context.Context, netip.AddrPort) (net.PacketConn, error) {
		return nil, errors.New("opened outside of the pod")
	}
	socket, err := c.UDP("hello", here)(t.Context(), to)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	marked, err := (&net.ListenConfig{Control: capture.Mark}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer marked.Close()
	if got, want := markOf(t, socket), markOf(t, marked); got != want || want == 0 {
		t.Errorf("SO_MARK %#x, want %#x, which rules of the pod leave alone", got, want)
	}
	if _, err := socket.WriteTo([]byte("tunnel"), net.UDPAddrFromAddrPort(to)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 32)
	peer.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, from, err := peer.ReadFrom(b)
	if err != nil || string(b[:n]) != "tunnel" || from.(*net.UDPAddr).AddrPort().Addr() != netip.MustParseAddr("10.71.1.1") {
		t.Fatalf("%q from %v, %v; want that of the tunnel, from the pod", b[:n], from, err)
	}
	peer.WriteTo([]byte("back"), from)
	socket.SetReadDeadline(time.Now().Add(5 * time.Second))
	if n, _, err := socket.ReadFrom(b); err != nil || string(b[:n]) != "back" {
		t.Errorf("the answer is %q, %v", b[:n], err)
	}
	if _, err := c.UDP("gone", here)(t.Context(), to); !localfault.Is(err) {
		t.Errorf("a pod that is not captured: %v, want a local failure", err)
	}
}

// markOf is the SO_MARK of a socket.
func markOf(t *testing.T, c net.PacketConn) (mark int) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err == nil {
		if failed := raw.Control(func(fd uintptr) { mark, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK) }); failed != nil {
			err = failed
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return mark
}
