//go:build linux

package capture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// bare is a host like the pods that no node proxy captures, and outsider one that the mesh does not know.
const (
	bareAddress     = "10.71.1.50"
	outsiderAddress = "10.71.9.9"
)

// newWorldBeside is newWorldAll with the hosts bare and outsider in the same segment.
func newWorldBeside(t *testing.T) *world {
	t.Helper()
	for host, a := range map[string]string{"bare": bareAddress, "outsider": outsiderAddress} {
		addresses[host] = a
		t.Cleanup(func() { delete(addresses, host) })
	}
	w := newWorldAll(t)
	for _, host := range []string{"outsider", "bare", "shop-1"} { // errors come at once, and all of them
		must(t, w.In(host, func() (err error) {
			for name, value := range map[string]string{"ipv4/icmp_ratelimit": "0", "ipv4/icmp_msgs_per_sec": "100000", "ipv4/icmp_msgs_burst": "100000", "ipv6/icmp/ratelimit": "0", "ipv4/conf/all/accept_redirects": "0", "ipv4/conf/eth0/accept_redirects": "0", "ipv6/conf/eth0/accept_redirects": "0"} {
				e := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
				if !errors.Is(e, os.ErrNotExist) {
					err = errors.Join(err, e)
				}
			}
			return err
		}))
	}
	return w
}

// seenByApp is what an application can see of one connection that it opens.
type seenByApp struct {
	err          string // of connect
	slow         bool   // it took longer than a first decision may
	source, peer string // without the port of source
	sameSource   bool   // the other side sees the source address and port that getsockname returns
	tcp          string // what TCP_INFO says of the peer's TCP
}

// open opens a connection from a pod, from its given port if that is not 0, and closes it.
func (w *world) open(pod, to string, port int, within time.Duration) (s seenByApp) {
	ns, err := podns.Open(w.Path(pod))
	if err != nil {
		return seenByApp{err: err.Error()}
	}
	defer ns.Close()
	d := net.Dialer{Timeout: within, KeepAlive: -1, Control: func(n, a string, c syscall.RawConn) error {
		if err := ns.Control(n, a, c); err != nil || port == 0 {
			return err
		}
		e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			if netip.MustParseAddrPort(to).Addr().Is4() {
				err = errors.Join(err, unix.Bind(int(fd), &unix.SockaddrInet4{Port: port}))
			} else {
				err = errors.Join(err, unix.Bind(int(fd), &unix.SockaddrInet6{Port: port}))
			}
		})
		return errors.Join(e, err)
	}}
	began := time.Now()
	c, err := d.DialContext(context.Background(), "tcp", to)
	took := time.Since(began)
	if s.slow = took > time.Second/2; err != nil {
		var errno syscall.Errno
		s.err = "timeout"
		if errors.As(err, &errno) {
			s.err = errno.Error()
		}
		if errno != syscall.ECONNREFUSED {
			s.slow = false // by ICMP: what comes while connect still holds the socket, as from the same machine, counts a second later
		}
		return s
	}
	defer c.Close()
	local := c.LocalAddr().(*net.TCPAddr).AddrPort()
	s.source, s.peer = "its own", c.RemoteAddr().String()
	if local.Addr().Unmap().String() != addresses[pod] && local.Addr().String() != netip.MustParseAddr(strings.Trim(v6(addresses[pod]), "[]")).String() || port != 0 && int(local.Port()) != port {
		s.source = local.String()
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	b := make([]byte, 200)
	n, _ := c.Read(b)
	s.sameSource = string(b[:n]) == local.String()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
			if err == nil {
				s.tcp = fmt.Sprintf("options %x, MSS %d, advertised %d, scale %x, path MTU %d", info.Options, info.Snd_mss, info.Advmss, info.Rcv_wnd>>20, info.Pmtu)
			}
		})
	}
	return s
}

// tells has a host tell each client on a port its address, and its port.
func (w *world) tells(t *testing.T, host, at string) {
	t.Helper()
	l, err := w.Listen(host, at)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr())
			c.Close()
		}
	}()
}

// What the mesh does not carry behaves as without it: connections of a captured pod to generated destinations, which listen,
// refuse, are unreachable, filtered or silent, look to the application as those of a pod that is not captured.
func TestOutsidersAsWithoutMesh(t *testing.T) {
	needsNft(t)
	w := newWorldBeside(t)
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	must(t, w.In("outsider", func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0), os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	}))
	for _, pod := range []string{"shop-1", "bare"} {
		must(t, w.IP(pod, "route add 198.18.0.0/15 via "+outsiderAddress))
		must(t, w.IP(pod, "-6 route add 2001:db8::/32 via "+strings.Trim(v6(outsiderAddress), "[]")))
		must(t, w.IP(pod, "route add prohibit 203.0.113.0/24"))
	}
	must(t, w.IP("outsider", "route add 198.18.0.0/15 dev eth0"))
	must(t, w.IP("outsider", "-6 route add 2001:db8::/32 dev eth0"))
	_, err := w.Nft("outsider", `add table inet f; add chain inet f f { type filter hook forward priority 0; policy drop; }; add rule inet f f ip daddr 198.18.1.0/24 reject with icmp type host-unreachable; add rule inet f f ip daddr 198.18.2.0/24 reject with icmp type admin-prohibited; add rule inet f f ip6 daddr 2001:db8:1::/48 reject with icmpv6 type no-route; add rule inet f f ip6 daddr 2001:db8:2::/48 reject with icmpv6 type admin-prohibited; add chain inet f i { type filter hook input priority 0; }; add rule inet f i tcp dport 100 drop; add rule inet f i tcp dport 101 reject with icmpx type admin-prohibited; add rule inet f i tcp dport 102 reject with icmpx type no-route`)
	must(t, err)
	outsider4, outsider6 := outsiderAddress, v6(outsiderAddress)
	for _, at := range []string{outsider4, outsider6} {
		for _, port := range []string{":90", ":91"} {
			w.tells(t, "outsider", at+port)
		}
	}
	fill := func(prefix string, bits int) string { // a random address
		p := netip.MustParsePrefix(fmt.Sprintf("%s/%d", prefix, bits))
		b := p.Addr().AsSlice()
		for i := bits / 8; i < len(b); i++ {
			b[i] = byte(1 + rng.IntN(250))
		}
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	}
	var destinations []string
	for range 3 {
		port := fmt.Sprint(":", 110+rng.IntN(60000))
		for _, host := range []string{outsider4, outsider6} {
			destinations = append(destinations, host+port, host+":90", host+":91", host+":100", host+":101", host+":102")
		}
		for net4, net6 := range map[string]string{"198.18.1.0": "2001:db8:1::", "198.18.2.0": "2001:db8:2::", "198.18.3.0": "2001:db8:3::"} {
			destinations = append(destinations, fill(net4, 24)+port, "["+fill(net6, 48)+"]"+port)
		}
		destinations = append(destinations, fill("203.0.113.0", 24)+port, fmt.Sprintf("10.71.1.%d%s", 100+rng.IntN(100), port), fmt.Sprintf("[fd71::10.71.1.%d]%s", 100+rng.IntN(100), port))
	}
	var wg sync.WaitGroup
	for i, to := range destinations {
		wg.Go(func() {
			port := 0
			if i%2 == 0 {
				port = 20000 + i
			}
			var want, got seenByApp
			for range 2 { // undecided, and decided
				var both sync.WaitGroup
				both.Go(func() { want = w.open("bare", to, port, 5*time.Second) })
				both.Go(func() { got = w.open("shop-1", to, port, 5*time.Second) })
				both.Wait()
				if want != got {
					t.Errorf("connect to %s from port %d: the captured pod sees %+v, one that is not captured %+v", to, port, got, want)
				}
				if port != 0 {
					port += 1000
				}
			}
		})
	}
	wg.Wait()
}

// What the application asks of its socket is the kernel's to do, end to end: urgent data, and how long the silence of a
// black-holed peer lasts.
func TestOutsidersKeepSocketOptions(t *testing.T) {
	needsNft(t)
	w := newWorldBeside(t)
	l, err := w.Listen("outsider", outsiderAddress+":92")
	must(t, err)
	defer l.Close()
	var both [2]string
	var wg sync.WaitGroup
	for i, pod := range []string{"bare", "shop-1"} {
		c, err := w.Dial(pod, outsiderAddress+":92")
		must(t, err)
		defer c.Close()
		peer, err := l.Accept()
		must(t, err)
		defer peer.Close()
		raw, err := c.SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_USER_TIMEOUT, 1000), unix.Send(int(fd), []byte("u"), unix.MSG_OOB))
		}))
		must(t, err)
		_, err = c.Write([]byte("rest"))
		must(t, err)
		b := make([]byte, 4)
		peer.SetDeadline(time.Now().Add(5 * time.Second))
		n, err := peer.Read(b)
		both[i] = fmt.Sprintf("the peer reads %q, %v", b[:n], err)
		wg.Go(func() {
			for w.blackhole(t); ; time.Sleep(50 * time.Millisecond) {
				c.SetDeadline(time.Now().Add(20 * time.Second))
				if _, err := c.Write([]byte("lost")); err != nil {
					both[i] += fmt.Sprint(", and then: ", errors.Is(err, syscall.ETIMEDOUT))
					return
				}
			}
		})
	}
	wg.Wait()
	if want := `the peer reads "rest", <nil>, and then: true`; both[0] != want || both[1] != want {
		t.Errorf("without capture %s; captured %s; want %s", both[0], both[1], want)
	}
}

// blackhole has the outsider drop all packets, of both connections.
func (w *world) blackhole(t *testing.T) {
	_, err := w.Nft("outsider", "add table inet b; add chain inet b i { type filter hook input priority 0; policy drop; }")
	if err != nil {
		t.Error(err)
	}
}
