//go:build linux

package main

import (
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
)

func TestParseRSS(t *testing.T) {
	const rollup = "00400000-7ffc ---p 00000000 00:00 0 [rollup]\nRss:               14280 kB\nPss:                9000 kB\n"
	if got, err := parseRSS(rollup); err != nil || got != 14280<<10 {
		t.Errorf("parseRSS is %d, %v, want %d", got, err, 14280<<10)
	}
	for _, bad := range []string{"", "Pss: 1 kB\n", "Rss: many kB\n"} {
		if got, err := parseRSS(bad); err == nil {
			t.Errorf("parseRSS(%q) is %d and no error", bad, got)
		}
	}
}

func TestParseInside(t *testing.T) {
	const goroutines = "goroutine profile: total 23\n9 @ 0x1 0x2\n"
	const heap = "heap profile: 1: 2 [3: 4] @ heap/1048576\n\n# runtime.MemStats\n# Alloc = 5\n# HeapInuse = 6029312\n# Stack = 917504 / 917504\n"
	want := inside{23, 6029312, 917504}
	if got, err := parseInside(goroutines, heap); err != nil || got != want {
		t.Errorf("parseInside is %v, %v, want %v", got, err, want)
	}
	for _, bad := range [][2]string{{"", heap}, {goroutines, ""}, {goroutines, "# HeapInuse = many\n# Stack = 1 / 1\n"}} {
		if got, err := parseInside(bad[0], bad[1]); err == nil {
			t.Errorf("parseInside(%q) is %v and no error", bad, got)
		}
	}
	var g, h strings.Builder
	pprof.Lookup("goroutine").WriteTo(&g, 1)
	pprof.Lookup("heap").WriteTo(&h, 1)
	if got, err := parseInside(g.String(), h.String()); err != nil || got.Goroutines < 1 || got.Heap <= 0 || got.Stack <= 0 {
		t.Errorf("this process is %v, %v", got, err)
	}
}

func TestResidentMemoryGrowsByWhatIsTouched(t *testing.T) {
	before, err := rssOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	block := make([]byte, size)
	for i := 0; i < size; i += os.Getpagesize() {
		block[i] = 1
	}
	after, err := rssOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if grown := after - before; grown < size*3/4 {
		t.Errorf("after touching %d bytes %d more are resident", size, grown)
	}
	runtime.KeepAlive(block)
}
