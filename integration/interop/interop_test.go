// Package interop runs our client, gateway and server beside stock ztunnel, in
// network namespaces that it makes itself; see ../README.md. It needs root, ip
// and the environment variable ZTUNNEL, a binary. Without ZTUNNEL every test is
// skipped; with it none is.
package interop

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// here is the world of all tests, nil without ZTUNNEL. They run one after the
// other and leave it as they found it.
var here *world

func TestMain(m *testing.M) {
	os.Exit(func() (code int) {
		ztunnel := os.Getenv("ZTUNNEL")
		if ztunnel == "" {
			return m.Run() // each test says that it is skipped
		}
		ztunnel, err := filepath.Abs(ztunnel)
		if err == nil {
			here, err = newWorld(ztunnel)
		}
		if here != nil {
			defer func() {
				if err := here.Close(); err != nil {
					fmt.Fprintln(os.Stderr, "interop:", err)
					code = 1
				}
			}()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "interop: start the world (it needs root and ip):", err)
			return 1
		}
		return m.Run()
	}())
}

// cell is one way through the matrix.
type cell struct {
	client  string // host
	server  string // ours or stock
	hop     string // near: single HBONE; far: double, through our gateway
	service netip.AddrPort
}

func (c cell) String() string { return fmt.Sprintf("%s-%s-%s", c.client, c.hop, c.server) }

// at is the cell with another port of the same service.
func (c cell) at(port uint16) cell {
	c.service = netip.AddrPortFrom(c.service.Addr(), port)
	return c
}

// cells are those ways that keep accepts.
func cells(keep func(cell) bool) (all []cell) {
	for _, hop := range []string{"near", "far"} {
		for _, client := range []string{"client-ours", "client-stock"} {
			for _, server := range []string{"ours", "stock"} {
				c := cell{client, server, hop, vip(hop+"-"+server, 80)}
				if keep(c) {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

func every(cell) bool { return true }

// double accepts what goes through our gateway.
func double(c cell) bool { return c.hop == "far" }

// matrix runs f for each way; without a stock ztunnel it skips the test.
func matrix(t *testing.T, keep func(cell) bool, f func(*testing.T, cell)) {
	need(t)
	for _, c := range cells(keep) {
		t.Run(c.String(), func(t *testing.T) { f(t, c) })
	}
}

func need(t *testing.T) {
	t.Helper()
	if here == nil {
		t.Skip("set ZTUNNEL=<binary of a stock ztunnel> to run it")
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, host := range []string{"client-ours", "client-stock", "gateway", "server-ours", "server-stock"} {
				t.Logf("end of the log of %s:\n%s", host, netspace.Tail(filepath.Join(here.Dir, host+".log")))
			}
		}
	})
}
