package quic

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/hbone"
	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// The MTU of a router on the path becomes 1280 while a session is open. The router reports larger packets by ICMP, as it
// should.
func TestSessionSurvivesSmallerMTU(t *testing.T) {
	netspace.NeedRoot(t)
	const client, router, server = "10.71.1.1", "10.71.1.2", "10.71.1.3"
	s, err := netspace.New("mtu")
	t.Cleanup(func() { check(t, s.Close()) })
	check(t, err)
	check(t, s.Segment("path", map[string][]string{"client": {client}, "router": {router}, "server": {server}}))
	check(t, s.IP("client", "route add", server, "via", router))
	check(t, s.IP("server", "route add", client, "via", router))
	check(t, s.In("router", func() error {
		const conf = "/proc/sys/net/ipv4/conf/"
		for _, f := range []string{conf + "all/send_redirects", conf + "eth0/send_redirects"} { // they would lead around the router
			if err := os.WriteFile(f, []byte("0"), 0o644); err != nil {
				return err
			}
		}
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
	}))
	socket := func(host, ip string) net.PacketConn {
		c, err := s.ListenPacket(host, ip+":0")
		check(t, err)
		return c
	}
	r := newRig(t, rigConfig{socket: socket("server", server), from: socket("client", client)})
	st := open(t, r.client)
	echoes := func(when string, st *hbone.Stream) {
		t.Helper()
		for range 20 {
			st.SetDeadline(time.Now().Add(10 * time.Second))
			data := make([]byte, 20<<10)
			go st.Write(data)
			if _, err := io.ReadFull(st, data); err != nil {
				t.Fatalf("%s: %v; the session: %v", when, err, r.client.Err())
			}
		}
	}
	echoes("before", st)
	for _, to := range []string{client, server} {
		check(t, s.IP("router", "route add", to, "dev eth0 mtu 1280"))
	}
	echoes("open stream", st)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	next, _, err := r.client.Open(ctx, &hbone.Request{Authority: "app.default:80"})
	check(t, err)
	echoes("new stream", next)
	// The router drops larger packets.
	check(t, s.In("client", func() error {
		c, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		raw.Control(func(fd uintptr) {
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		})
		for end := time.Now().Add(10 * time.Second); !errors.Is(err, syscall.EMSGSIZE); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("a packet of 1300 bytes is not refused")
			}
			_, err = c.WriteTo(make([]byte, 1300), &net.UDPAddr{IP: net.ParseIP(server), Port: 9})
		}
		return nil
	}))
}
