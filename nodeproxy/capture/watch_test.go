//go:build linux

package capture

import (
	"net/netip"
	"testing"

	"github.com/google/nftables"
)

// change does something to the tables of the pod.
func (p *pod) change(t *testing.T, f func(c *nftables.Conn)) {
	t.Helper()
	must(t, p.ns.FD(func(fd int) error {
		c, err := nftables.New(nftables.WithNetNSFd(fd))
		must(t, err)
		f(c)
		return c.Flush()
	}))
}

func TestRulesThatOthersChangeAreNoticed(t *testing.T) {
	p := newPod(t)
	w, err := NewWatch(p.ns)
	must(t, err)
	defer w.Close()
	check := func(what string, changed, hold bool) {
		t.Helper()
		if got, err := w.Changed(); err != nil || got != changed {
			t.Errorf("%s: rules have changed: %t, %v, want %t", what, got, err, changed)
		}
		if got, err := Hold(p.ns, mesh); err != nil || got != hold {
			t.Errorf("%s: the rules hold: %t, %v, want %t", what, got, err, hold)
		}
	}
	check("at first", true, false)
	check("without rules", false, false)
	must(t, Set(p.ns, mesh))
	check("after Set", true, true)
	check("at rest", false, true)
	n, err := CaptureNames(p.ns, []netip.Addr{netip.MustParseAddr(otherAddress)})
	must(t, err)
	check("with names", true, true)
	p.change(t, func(c *nftables.Conn) { c.AddTable(&nftables.Table{Name: "docker", Family: nftables.TableFamilyIPv4}) })
	check("with another's table", true, true)
	ours := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	for what, f := range map[string]func(c *nftables.Conn){
		"after a flush of all":      func(c *nftables.Conn) { c.FlushRuleset() },
		"without the table":         func(c *nftables.Conn) { c.DelTable(ours) },
		"after a flush of ours":     func(c *nftables.Conn) { c.FlushTable(ours) },
		"after a flush of a chain":  func(c *nftables.Conn) { c.FlushChain(&nftables.Chain{Name: "output", Table: ours}) },
		"with an empty table of it": func(c *nftables.Conn) { c.DelTable(ours); c.AddTable(ours) },
	} {
		p.change(t, f)
		check(what, true, false)
		must(t, Set(p.ns, mesh))
		check(what+", set again", true, true)
	}
	if names := p.tables(t); len(names) != 2 { // nobody else can take that of names away
		t.Errorf("tables %v, want ours and that of names", names)
	}
	must(t, Set(p.ns, Rules{Ranges: mesh.Ranges}))
	check("with rules of another version", true, false)
	must(t, n.Close())
}

func BenchmarkWatch(b *testing.B) {
	p := newPod(b)
	w, err := NewWatch(p.ns)
	must(b, err)
	defer w.Close()
	for b.Loop() {
		_, err := w.Changed()
		must(b, err)
	}
}
