//go:build linux

package capture

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

// filled has a process of a pod put thousands of sets into the table of its node proxy, again and again, and change something
// of its own all the time, until end.
func (w *world) filled(t *testing.T, host string) (end func()) {
	t.Helper()
	const sets, each = 30000, 10000 // in all, and in one transaction
	ns, err := podns.Open(w.Path(host))
	must(t, err)
	room := nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(1024*each), c.SetReadBuffer(1024*each))
	})
	change := func(f func(c *nftables.Conn) error) error {
		return ns.FD(func(fd int) error {
			c, err := nftables.New(nftables.WithNetNSFd(fd), room)
			return errors.Join(err, f(c), c.Flush())
		})
	}
	next := 0
	fill := func(c *nftables.Conn) (err error) {
		ours := &nftables.Table{Name: "isthmus", Family: nftables.TableFamilyINet}
		for i := range each {
			err = errors.Join(err, c.AddSet(&nftables.Set{Table: ours, Name: fmt.Sprint("s", next%sets), KeyType: nftables.TypeInetService, ID: uint32(i + 1)}, nil))
			next++
		}
		return err
	}
	for range sets / each {
		must(t, change(fill))
	}
	stop, running := make(chan struct{}), sync.WaitGroup{}
	often := func(every time.Duration, f func(c *nftables.Conn) error) {
		running.Go(func() {
			for tick := time.NewTicker(every); ; {
				select {
				case <-stop:
					tick.Stop()
					return
				case <-tick.C:
				}
				change(f) // which fails where the node proxy was quicker
			}
		})
	}
	often(time.Second, fill)
	often(50*time.Millisecond, func(c *nftables.Conn) error {
		mine := &nftables.Table{Name: "mine", Family: nftables.TableFamilyINet}
		c.AddTable(mine)
		c.DelTable(mine)
		return nil
	})
	return func() {
		close(stop)
		running.Wait()
		ns.Close()
	}
}

// A pod that fills the table of its node proxy and changes its rules all the time holds up nobody: pods that start are captured
// in the time that it takes without, and another pod whose rules were flushed has them back as soon as the kernel, which both
// keep busy then, allows.
func TestAPodThatFillsItsTablesHoldsUpNobodyElse(t *testing.T) {
	w, pods := newStarting(t, 6, "")
	w.answersPlugins(t)
	starts := func(from, to int) (longest time.Duration) {
		t.Helper()
		for i, p := range pods[from:to] {
			must(t, w.Host("all", p.host, p.address))
			began := time.Now()
			if out, err := w.cni("ADD", p, fmt.Sprint("c", from+i), `"failurePolicy":"Fail",`); err != nil {
				t.Fatalf("pod %s is not captured after %v: %.300s %v", p.host, time.Since(began), out, err)
			}
			longest = max(longest, time.Since(began))
		}
		return longest
	}
	flushed := func() (longest time.Duration) {
		t.Helper()
		for range 3 {
			w.flush(t, pods[1].host)
			longest = max(longest, w.isCaptured(t, time.Minute, pods[1].host, hello+":80"))
		}
		return longest
	}
	alone := starts(0, 2) // one that fills its tables, and another one
	back := flushed()
	defer w.filled(t, pods[0].host)()
	beside, again := starts(2, 6), flushed()
	t.Logf("pods are captured in %v, and %v beside one that fills its tables; rules come back in %v, and %v", alone, beside, back, again)
	if beside > alone+3*time.Second || again > back+20*time.Second {
		t.Errorf("beside a pod that fills its tables others are captured after %v (%v without it), and have their rules back after %v (%v)", beside, alone, again, back)
	}
	text, err := os.ReadFile(w.file("node-a.log"))
	must(t, err)
	said := func(line string) bool {
		return strings.Contains(line, "somebody else has changed the rules") && strings.Contains(line, pods[0].uid)
	}
	if !slices.ContainsFunc(strings.Split(string(text), "\n"), said) {
		t.Error("the log of the node proxy does not say that the pod changes its rules")
	}
}
