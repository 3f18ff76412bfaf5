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

// connects connects from the pod, within a time in which no packet is repeated.
func (p *pod) connects(t *testing.T, to string) error {
	t.Helper()
	d := net.Dialer{Timeout: 300 * time.Millisecond, Control: p.ns.Control}
	c, err := d.Dial("tcp", to)
	if err == nil {
		c.Close()
	}
	return err
}

// Decisions outlive new rules of the same process and the process itself. The rules of another process have none, and the
// kernel rejects later decisions of the one before.
func TestDecisionsBelongToTheirProcess(t *testing.T) {
	p := newPod(t)
	l, err := p.Listen("other", otherAddress+":80")
	must(t, err)
	defer l.Close()
	to := netip.MustParseAddrPort(otherAddress + ":80")
	direct := Decision{To: to, Verdict: Direct, For: time.Minute}
	open := func(by Setter) (*Undecided, Rules) {
		t.Helper()
		u, err := OpenUndecided(p.ns, by, nil)
		must(t, err)
		t.Cleanup(func() { u.Close() })
		r := all()
		r.By, r.Group = by, u.Group()
		must(t, Set(p.ns, r))
		return u, r
	}
	first, rules := open(Setter{Began: 1, Socket: 7})
	if err := p.connects(t, to.String()); err == nil {
		t.Error("an undecided destination is reached")
	}
	must(t, first.Decide(direct))
	if err := p.connects(t, to.String()); err != nil {
		t.Errorf("after the decision: %v", err)
	}
	rules.Addresses = append(rules.Addresses, netip.MustParseAddr("10.96.0.8"))
	must(t, Set(p.ns, rules))
	if hold, err := Hold(p.ns, rules); err != nil || !hold {
		t.Errorf("the rules hold: %t, %v", hold, err)
	}
	if err := p.connects(t, to.String()); err != nil {
		t.Errorf("with other rules of the same process: %v", err)
	}
	must(t, first.Revoke(direct))
	must(t, first.Revoke(direct)) // again
	if err := p.connects(t, to.String()); err == nil {
		t.Error("a destination is reached after its decision was revoked")
	}
	must(t, first.Decide(direct))
	second, _ := open(Setter{Began: 2, Socket: 8})
	if first.Group() == second.Group() {
		t.Errorf("two processes have group %d", first.Group())
	}
	if err := p.connects(t, to.String()); err == nil {
		t.Error("another process has the decisions of the one before")
	}
	if err := first.Decide(direct); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a decision of the process before: %v, want %v", err, unix.ENOENT)
	}
	must(t, second.Decide(direct))
	second.Close()
	if err := p.connects(t, to.String()); err != nil {
		t.Errorf("after the process has ended: %v", err)
	}
	must(t, Set(p.ns, Rules{Owner: "it leaves"}))
	if err := p.connects(t, to.String()); err != nil {
		t.Errorf("after the pod has left the mesh: %v", err)
	}
}

// The kernel ends decisions by itself, and holds MaxDecisions of each kind.
func TestDecisionsEndAndAreBounded(t *testing.T) {
	p := newPod(t)
	u, err := OpenUndecided(p.ns, Setter{Began: 1, Socket: 7}, nil)
	must(t, err)
	defer u.Close()
	r := all()
	r.By, r.Group = Setter{Began: 1, Socket: 7}, u.Group()
	must(t, Set(p.ns, r))
	l, err := p.Listen("other", otherAddress+":80")
	must(t, err)
	defer l.Close()
	to := netip.MustParseAddrPort(otherAddress + ":80")
	must(t, u.Decide(Decision{To: to, Verdict: Direct, For: time.Second}))
	if err := p.connects(t, to.String()); err != nil {
		t.Errorf("connect to a decided destination: %v", err)
	}
	for end := time.Now().Add(10 * time.Second); p.connects(t, to.String()) == nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a decision for a second is in force after ten")
		}
	}
	for i := range MaxDecisions {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 80)
		if err := u.Decide(Decision{To: at, Verdict: Direct, For: time.Minute}); err != nil {
			t.Fatalf("decision %d: %v", i, err)
		}
	}
	if err := u.Decide(Decision{To: to, Verdict: Direct, For: time.Minute}); err == nil {
		t.Errorf("the kernel has taken more than %d decisions", MaxDecisions)
	}
}

// Transactions by which decisions change do not count as changes of the rules by others, and those of others beside them do.
func TestWatchIgnoresDecisions(t *testing.T) {
	p := newPod(t)
	w, err := NewWatch(p.ns)
	must(t, err)
	defer w.Close()
	u, err := OpenUndecided(p.ns, Setter{Began: 1, Socket: 7}, w)
	must(t, err)
	defer u.Close()
	r := all()
	r.By, r.Group = Setter{Began: 1, Socket: 7}, u.Group()
	must(t, Set(p.ns, r))
	changed := func() bool {
		c, err := w.Changed()
		must(t, err)
		return c
	}
	changed()
	for i := range 50 {
		x := Decision{To: netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), uint16(1+i)), Verdict: Direct, For: time.Minute}
		must(t, u.Decide(x))
		if i%2 == 0 {
			must(t, u.Revoke(x))
		}
		if i%7 == 0 && changed() {
			t.Fatalf("after decision %d the rules have changed", i)
		}
	}
	if changed() {
		t.Error("decisions have changed the rules")
	}
	must(t, u.Decide(Decision{To: netip.MustParseAddrPort("198.18.0.1:999"), Verdict: Direct, For: time.Minute}))
	must(t, Set(p.ns, r))
	if !changed() {
		t.Error("rules that were set again have not changed")
	}
}
