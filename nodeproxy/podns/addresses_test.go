//go:build linux

package podns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// However many addresses a pod gives itself, little more of them is read than a pod can be captured with.
func TestAPodWithTooManyAddressesIsAnError(t *testing.T) {
	s := space(t)
	ns, err := Open(s.Path("pod"))
	must(t, err)
	defer ns.Close()
	add := func(from, to int) {
		t.Helper()
		var lines []string
		for i := from; i < to; i++ {
			lines = append(lines, fmt.Sprintf("addr add fd72::%x:%x/128 dev lo nodad", i/250, i%250+1))
		}
		file := filepath.Join(t.TempDir(), "addresses")
		must(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
		must(t, s.IP("pod", "-batch "+file))
	}
	measure := func() (list []netip.Addr, bytes uint64, err error) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		list, err = ns.Addresses()
		runtime.ReadMemStats(&after)
		return list, after.TotalAlloc - before.TotalAlloc, err
	}
	add(0, 1000)
	list, bytes, err := measure()
	must(t, err)
	for _, a := range []string{"10.71.1.1", "127.0.0.1", "::1", "fd72::1", "fd72::3:fa"} {
		if !slices.Contains(list, netip.MustParseAddr(a)) {
			t.Errorf("%s is not among %d addresses", a, len(list))
		}
	}
	must(t, s.In("pod", func() error { // the library's are the same
		all, err := net.InterfaceAddrs()
		for i, a := range all {
			p := netip.MustParsePrefix(a.String())
			if i >= len(list) || list[i] != p.Addr().Unmap() {
				t.Fatalf("address %d of %d is not %s", i, len(list), a)
			}
		}
		return err
	}))
	t.Logf("%d bytes for %d addresses", bytes, len(list))
	const many = 5000
	add(1000, many)
	list, bytes, err = measure()
	if err == nil || len(list) > 0 || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d addresses are listed, %v; want an error that says that these are too many", len(list), err)
	}
	if bytes > 3<<20 {
		t.Errorf("with %d addresses it takes %d bytes", many, bytes)
	}
}

// One interface is found by its name without a look at the others, of which a pod may have as many as it likes: the node proxy
// asks for one with each query to a server that has a zone.
func TestAnInterfaceIsFoundWithoutTheOthers(t *testing.T) {
	s := space(t)
	ns, err := Open(s.Path("pod"))
	must(t, err)
	defer ns.Close()
	var want *net.Interface
	must(t, s.In("pod", func() (err error) {
		want, err = net.InterfaceByName("eth0")
		return err
	}))
	var lines []string
	for i := range 300 {
		lines = append(lines, fmt.Sprintf("link add d%d type bridge", i))
	}
	file := filepath.Join(t.TempDir(), "interfaces")
	must(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	must(t, s.IP("pod", "-batch "+file))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := ns.Interface("eth0")
	runtime.ReadMemStats(&after)
	if err != nil || got != want.Index {
		t.Errorf("eth0 is number %d, %v; want %d", got, err, want.Index)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 100<<10 {
		t.Errorf("it takes %d bytes beside %d others", bytes, len(lines))
	}
	for _, name := range []string{"nonesuch", "", strings.Repeat("x", 100)} {
		if n, err := ns.Interface(name); err == nil {
			t.Errorf("interface %q is number %d", name, n)
		}
	}
}
