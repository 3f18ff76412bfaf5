//go:build linux

package capture

import "testing"

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
