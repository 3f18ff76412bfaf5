//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// decide is a process that decides on what the pod opens, by judge, until the test ends.
func (p *pod) decide(t testing.TB, r Rules, judge func(FirstPacket) Verdict) (*Undecided, Rules) {
	t.Helper()
	r.By = Setter{Began: 1, Socket: 7}
	u, err := OpenUndecided(p.ns, r.By, nil)
	must(t, err)
	r.Group = u.Group()
	must(t, Set(p.ns, r))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			f, err := u.Next()
			if err != nil {
				return
			}
			v := judge(f)
			if v == 0 {
				continue
			}
			if err := u.Decide(Decision{To: f.To, Verdict: v, For: time.Minute}); err != nil {
				t.Errorf("decide on %v: %v", f.To, err)
			}
			if err := u.Send(f); err != nil {
				t.Errorf("%v", err)
			}
		}
	}()
	t.Cleanup(func() { u.Close(); <-done })
	return u, r
}

func TestDecisionsTakeEffectOnFirstPacket(t *testing.T) {
	p := newPod(t)
	r := mesh
	r.Everything = true
	four, six := p.listen(t, "tcp4", "127.0.0.1:15001"), p.listen(t, "tcp6", "[::1]:15001")
	verdicts := map[string]Verdict{}
	addr := func(v Verdict, hosts ...string) {
		for _, h := range hosts {
			verdicts[h] = v
		}
	}
	addr(Direct, otherAddress+":80", "["+other6+"]:80", otherAddress+":81", "["+other6+"]:81")
	addr(Mesh, otherAddress+":90", "["+other6+"]:90", "240.240.0.1:90", "[2001:2::1]:90", "10.96.0.7:90", "192.0.2.1:90")
	addr(Refused, otherAddress+":95", "["+other6+"]:95", "240.240.0.1:95", "[2001:2::1]:95", "10.96.0.7:95", "[2001:db8::1]:95")
	p.decide(t, r, func(f FirstPacket) Verdict { return verdicts[f.To.String()] })
	for _, at := range []string{otherAddress + ":80", "[" + other6 + "]:80"} {
		l, err := p.Listen("other", at)
		must(t, err)
		defer l.Close()
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
	for round := range 2 {
		for to, v := range verdicts {
			began := time.Now()
			c, err := p.dial("tcp", to, nil)
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("round %d: connect to %s took %v", round, to, took)
			}
			listens := netip.MustParseAddrPort(to).Port() == 80
			switch {
			case v == Mesh && err == nil:
				l := four
				if netip.MustParseAddrPort(to).Addr().Is6() {
					l = six
				}
				if got, _ := originalOf(t, l); got != to {
					t.Errorf("a connection to %s was to go to %s", to, got)
				}
				c.Close()
			case v == Direct && listens && err == nil:
				b := make([]byte, 99)
				n, _ := c.Read(b)
				if got := string(b[:n]); got != c.LocalAddr().String() {
					t.Errorf("%s sees %s, want %s", to, got, c.LocalAddr())
				}
				c.Close()
			case v == Mesh || listens || !errors.Is(err, syscall.ECONNREFUSED):
				t.Errorf("round %d: connect to %s (%v): %v", round, to, v, err)
			}
		}
	}
}

// The mark and the interface of the application's socket are those of the packet that is sent again.
func TestSentAgainKeepsMarkAndInterface(t *testing.T) {
	p := newPod(t)
	r := mesh
	r.Everything = true
	seen := make(chan FirstPacket, 9)
	p.decide(t, r, func(f FirstPacket) Verdict { seen <- f; return Direct })
	must(t, p.IP("pod", "link add dummy7 type veth peer name dummy8"))
	must(t, p.IP("pod", "link set dummy7 up"))
	must(t, p.IP("pod", "link set dummy8 up"))
	must(t, p.IP("pod", "neigh add 198.51.100.9 lladdr 02:00:00:00:00:09 dev dummy7"))
	must(t, p.IP("pod", "route add 198.51.100.0/24 dev dummy7 table 77"))
	must(t, p.IP("pod", "rule add fwmark 0x77 lookup 77"))
	control := func(_, _ string, c syscall.RawConn) error {
		return set(c, unix.SOL_SOCKET, unix.SO_MARK, 0x77)
	}
	dummy, err := p.ns.Interface("dummy7")
	must(t, err)
	tx := func() string {
		var b []byte
		must(t, p.In("pod", func() (err error) {
			b, err = os.ReadFile("/proc/thread-self/net/dev")
			return err
		}))
		for _, l := range strings.Split(string(b), "\n") {
			var name string
			var v [10]int
			if n, _ := fmt.Sscan(l, &name, &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8], &v[9]); n > 10 && name == "dummy7:" {
				return fmt.Sprint(v[9])
			}
		}
		return ""
	}
	before := tx()
	d := net.Dialer{Timeout: 300 * time.Millisecond, Control: func(n, a string, c syscall.RawConn) error {
		return errors.Join(p.ns.Control(n, a, c), control(n, a, c))
	}}
	if _, err := d.Dial("tcp", "198.51.100.9:80"); err == nil {
		t.Fatal("an address that no host has answers")
	}
	f := <-seen
	if f.Mark != 0x77 || int(f.Out) != dummy || f.To.String() != "198.51.100.9:80" {
		t.Errorf("the first packet is %+v, want mark 0x77 by interface %d", f, dummy)
	}
	if after := tx(); after == before {
		t.Errorf("nothing was sent by dummy7: %s packets before, %s after", before, after)
	}
}
