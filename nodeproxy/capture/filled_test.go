//go:build linux

package capture

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// fill has a process of the pod add n things to its nftables, in a few transactions.
func (p *pod) fill(t *testing.T, n int, add func(c *nftables.Conn, i int)) {
	t.Helper()
	const each = 2000
	must(t, p.ns.FD(func(fd int) error {
		for i := 0; i < n; i += each {
			c, err := nftables.New(nftables.WithNetNSFd(fd), nftables.WithSockOptions(func(c *netlink.Conn) error {
				return errors.Join(c.SetWriteBuffer(each*1024), c.SetReadBuffer(each*1024))
			}))
			must(t, err)
			for k := i; k < min(i+each, n); k++ {
				add(c, k)
			}
			if err := c.Flush(); err != nil {
				return err
			}
		}
		return nil
	}))
}

// looks are what a node proxy asks of a pod whose rules have changed.
func (p *pod) looks(t *testing.T, hold bool) (took time.Duration) {
	t.Helper()
	took = time.Hour // what the machine adds is none of the pod's doing
	for range 5 {
		began := time.Now()
		if got, err := Hold(p.ns, mesh); err != nil || got != hold {
			t.Fatalf("the rules hold: %t, %v; want %t", got, err, hold)
		}
		if _, _, _, err := SetBy(p.ns); err != nil {
			t.Fatal(err)
		}
		took = min(took, time.Since(began))
	}
	return took
}

// However much a pod puts into its nftables, and into the table of its node proxy, a look at that and its repair take
// about as long as without it.
func TestAPodThatFillsItsTablesIsLookedAtInNoTime(t *testing.T) {
	const n = 3000
	p := newPod(t)
	must(t, Set(p.ns, mesh))
	bare := p.looks(t, true)
	ours := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	set := func(c *nftables.Conn, i int) {
		must(t, c.AddSet(&nftables.Set{Table: ours, Name: fmt.Sprint("s", i), KeyType: nftables.TypeInetService, ID: uint32(i + 1)}, nil))
	}
	const most = 250 * time.Millisecond // on a machine that has much else to do
	for _, row := range []struct {
		what string
		add  func(c *nftables.Conn, i int)
		hold bool
	}{
		{"tables", func(c *nftables.Conn, i int) {
			c.AddTable(&nftables.Table{Name: fmt.Sprint("t", i), Family: nftables.TableFamilyINet})
		}, true},
		{"sets of our table", set, false},
		{"chains of our table", func(c *nftables.Conn, i int) { c.AddChain(&nftables.Chain{Name: fmt.Sprint("c", i), Table: ours}) }, false},
		{"rules of our chain", func(c *nftables.Conn, i int) {
			c.AddRule(&nftables.Rule{Table: ours, Chain: &nftables.Chain{Name: "output", Table: ours}, Exprs: reject()})
		}, false},
	} {
		p.fill(t, n, row.add)
		filled := p.looks(t, row.hold)
		began := time.Now()
		must(t, Set(p.ns, mesh))
		t.Logf("%d %s: a look takes %v, and %v before; the rules are set again in %v", n, row.what, filled, bare, time.Since(began))
		if filled > max(most, 20*bare) {
			t.Errorf("with %d %s a look takes %v, and %v before", n, row.what, filled, bare)
		}
		p.looks(t, true)
	}
}

// dormant has the kernel go by none of the rules of our table, which stay as they are.
func (p *pod) dormant(t *testing.T) {
	t.Helper()
	m, err := request(unix.NFPROTO_INET, unix.NFT_MSG_NEWTABLE, 0, text(unix.NFTA_TABLE_NAME, table), netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binaryutil.BigEndian.PutUint32(unix.NFT_TABLE_F_DORMANT)})
	must(t, err)
	must(t, p.ns.FD(func(fd int) error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: fd})
		must(t, err)
		defer c.Close()
		return transact(c, m)
	}))
}

// A table that has anything beside the node proxy's own, or that the kernel does not go by, is not as it was set. With a
// little more it may be a later version's; with far more, and out of work, it is nobody's, whatever names are in it.
func TestATableWithAnythingElseIsNotAsOurs(t *testing.T) {
	p := newPod(t)
	r := mesh
	r.By = Setter{Began: 1, Socket: 7}
	ours := &nftables.Table{Name: table, Family: nftables.TableFamilyINet}
	sets := func(n int) func(c *nftables.Conn) {
		return func(c *nftables.Conn) {
			for i := range n {
				must(t, c.AddSet(&nftables.Set{Table: ours, Name: fmt.Sprint("s", i), KeyType: nftables.TypeInetService, ID: uint32(i + 1)}, nil))
			}
		}
	}
	for _, row := range []struct {
		what  string
		f     func(c *nftables.Conn)
		alien bool
	}{
		{"with a set", sets(1), false},
		{"with many sets", sets(2 * maxParts), true},
		{"with a chain", func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Name: "c", Table: ours}) }, false},
		{"with an object", func(c *nftables.Conn) { c.AddObj(&nftables.CounterObj{Table: ours, Name: "o"}) }, false},
		{"put out of work", func(*nftables.Conn) { p.dormant(t) }, true},
	} {
		must(t, Set(p.ns, r))
		p.change(t, row.f)
		if hold, err := Hold(p.ns, r); hold || err != nil {
			t.Errorf("%s: the rules hold: %t, %v", row.what, hold, err)
		}
		want := r.By
		if row.alien {
			want = Setter{}
		}
		if _, by, there, err := SetBy(p.ns); err != nil || there == row.alien || by != want {
			t.Errorf("%s: it is of %+v, there %t, %v; want %+v", row.what, by, there, err, want)
		}
		if owner, there, err := Owner(p.ns); err != nil || !there || owner != r.Owner {
			t.Errorf("%s: the owner is %q, there %t, %v; want it to be known still, so that it can be released", row.what, owner, there, err)
		}
		must(t, Set(p.ns, r))
		if hold, err := Hold(p.ns, r); !hold || err != nil {
			t.Errorf("%s, set again: the rules hold: %t, %v", row.what, hold, err)
		}
	}
}
