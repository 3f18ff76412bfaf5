//go:build linux

package capture

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// Of those who share a port in a pod the rules say who has set them last, and the kernel whether that one lives; what
// the rules do does not depend on it.
func TestRulesSayWhoHasSetThemAndTheKernelWhetherThatOneLives(t *testing.T) {
	p := newPod(t)
	at := netip.AddrPortFrom(netip.MustParseAddr(podAddress), 15008)
	listen := func(began uint64) (*net.TCPListener, Setter) {
		lc := net.ListenConfig{Control: func(n, a string, c syscall.RawConn) error {
			if err := p.ns.Control(n, a, c); err != nil {
				return err
			}
			return Share(n, a, c)
		}}
		l, err := lc.Listen(context.Background(), "tcp", at.String())
		must(t, err)
		t.Cleanup(func() { l.Close() })
		cookie, err := Cookie(l.(*net.TCPListener))
		must(t, err)
		return l.(*net.TCPListener), Setter{Began: began, Socket: cookie}
	}
	now, err := Now()
	must(t, err)
	_, older := listen(now - 2)
	l, younger := listen(now - 1)
	mesh := Rules{Owner: "cluster.local/net-a", Ranges: []netip.Prefix{netip.MustParsePrefix("240.240.0.0/16")}}
	if _, by, there, err := SetBy(p.ns); there || err != nil || by != (Setter{}) {
		t.Errorf("nobody has set rules: %v, there %t, %v", by, there, err)
	}
	for _, want := range []Setter{older, younger, {}} {
		mesh.By = want
		must(t, Set(p.ns, mesh))
		owner, by, there, err := SetBy(p.ns)
		if err != nil || !there || owner != mesh.Owner || by != want {
			t.Errorf("rules of %q by %+v, there %t, %v; want those of %q by %+v", owner, by, there, err, mesh.Owner, want)
		}
		mesh.By = Setter{}
		if hold, err := Hold(p.ns, mesh); err != nil || !hold {
			t.Errorf("set by %+v the same rules hold: %t, %v", want, hold, err)
		}
	}
	alive := func(s Setter) bool {
		t.Helper()
		is, err := Alive(p.ns, at, s)
		must(t, err)
		return is
	}
	if !alive(older) || !alive(younger) || alive(Setter{Began: now, Socket: 1 << 60}) {
		t.Errorf("alive: %t, %t; and who was never there: %t", alive(older), alive(younger), alive(Setter{Began: now, Socket: 1 << 60}))
	}
	mesh.By = Setter{Began: now + uint64(time.Hour), Socket: younger.Socket}
	must(t, Set(p.ns, mesh))
	if _, by, there, err := SetBy(p.ns); err != nil || there || by != (Setter{}) {
		t.Errorf("rules of who begins in an hour are of %+v, there %t, %v; want nobody's", by, there, err)
	}
	must(t, l.Close())
	if !alive(older) || alive(younger) {
		t.Errorf("when the younger one has closed its listener alive are: %t, %t; want the older one", alive(older), alive(younger))
	}
}
