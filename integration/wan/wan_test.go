//go:build linux

// Package wan runs the real binaries with a long line between clients and pods;
// see ../README.md. It needs root and ip. With ZTUNNEL, a binary, stock ztunnel
// is measured beside ours. The variable WAN says that it is wanted: without it
// every test is skipped, because they measure time and want the machine alone.
// A short run (go test -short) is for every test run and takes half a minute;
// that one is skipped without root.
package wan

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// here is the world of all tests. They run one after the other and leave it as
// they found it.
var here *world

func TestMain(m *testing.M) {
	os.Exit(func() (code int) {
		flag.Parse()
		if os.Getenv("WAN") == "" || testing.Short() && os.Geteuid() != 0 {
			return m.Run() // each test says that it is skipped
		}
		ztunnel := os.Getenv("ZTUNNEL")
		var err error
		if ztunnel != "" {
			ztunnel, err = filepath.Abs(ztunnel)
		}
		if err == nil {
			here, err = newWorld(ztunnel)
		}
		if here != nil {
			defer func() {
				if err := here.close(); err != nil {
					fmt.Fprintln(os.Stderr, "wan:", err)
					code = 1
				}
			}()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "wan: start the world (it needs root and ip):", err)
			return 1
		}
		return m.Run()
	}())
}

func need(t *testing.T) {
	t.Helper()
	if here == nil {
		t.Skip("it needs root: make integration runs a part of it, make wan all of it")
	}
	t.Cleanup(func() {
		here.link.Set(line)
		if t.Failed() {
			for _, name := range []string{"client-ours", "gateway", "server-ours", "spare-gateway", "spare"} {
				t.Logf("end of the log of %s:\n%s", name, netspace.Tail(here.log(name)))
			}
		}
	})
}

// notShort skips a test that takes long.
func notShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make wan runs it")
	}
}
