package pods

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/tcp"
)

// On a host without IPv6 what is opened to pods is captured by IPv4 alone; nothing else that goes wrong is taken for that.
func TestWithoutIPv6ListenersAreOfIPv4(t *testing.T) {
	for _, row := range []struct {
		fails syscall.Errno
		want  []string
	}{
		{syscall.EAFNOSUPPORT, []string{"[::]:15006", "0.0.0.0:15006"}},
		{syscall.EADDRNOTAVAIL, []string{"[::]:15006", "0.0.0.0:15006"}},
		{syscall.EADDRINUSE, []string{"[::]:15006"}},
		{0, []string{"[::]:15006"}},
	} {
		var tried []string
		c := &Set{p: alone()}
		_, err := c.listenEverywhere(func(a netip.AddrPort, _ ...tcp.Control) (net.Listener, error) {
			tried = append(tried, a.String())
			if a.Addr().Is6() && row.fails != 0 {
				return nil, os.NewSyscallError("socket", row.fails)
			}
			return nil, nil
		}, 15006)
		want := len(row.want) == 1 && row.fails != 0
		if (err != nil) != want || want && !errors.Is(err, row.fails) || len(tried) != len(row.want) || tried[len(tried)-1] != row.want[len(row.want)-1] {
			t.Errorf("%v: tried %v, %v; want %v", row.fails, tried, err, row.want)
		}
	}
}
