//go:build linux

package capture

import (
	"os/exec"
	"testing"

	"github.com/isthmus-mesh/isthmus/nodeproxy/podns"
)

func BenchmarkSet(b *testing.B) {
	p := newPod(b)
	for b.Loop() {
		must(b, Set(p.ns, mesh))
	}
}

func BenchmarkOwner(b *testing.B) {
	p := newPod(b)
	must(b, Set(p.ns, mesh))
	for b.Loop() {
		_, _, err := Owner(p.ns)
		must(b, err)
	}
}

// fresh is a new network namespace with an address, which nobody has set rules in.
func fresh(tb testing.TB, name string) *podns.Namespace {
	tb.Helper()
	must(tb, exec.Command("ip", "netns", "add", name).Run())
	tb.Cleanup(func() { exec.Command("ip", "netns", "delete", name).Run() })
	must(tb, exec.Command("ip", "-n", name, "link", "set", "lo", "up").Run())
	must(tb, exec.Command("ip", "-n", name, "addr", "add", podAddress+"/32", "dev", "lo").Run())
	must(tb, exec.Command("ip", "-n", name, "route", "add", "default", "dev", "lo").Run())
	ns, err := podns.Open("/run/netns/" + name)
	must(tb, err)
	tb.Cleanup(func() { ns.Close() })
	return ns
}

// What it takes until the first rules of a pod hold, beginning with a namespace that has none.
func BenchmarkFirst(b *testing.B) {
	for _, what := range []struct {
		name string
		set  func(*podns.Namespace) error
	}{
		{"route", func(ns *podns.Namespace) error { return setRoute(ns, false) }},
		{"zone", setZone},
		{"source", func(ns *podns.Namespace) error { return SetSource(ns, false) }},
		{"rules", func(ns *podns.Namespace) error { return Set(ns, mesh) }},
	} {
		b.Run(what.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				ns := fresh(b, "isthmus-first")
				b.StartTimer()
				must(b, what.set(ns))
				b.StopTimer()
				ns.Close()
				exec.Command("ip", "netns", "delete", "isthmus-first").Run()
				b.StartTimer()
			}
		})
	}
}
