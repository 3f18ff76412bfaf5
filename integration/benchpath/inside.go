//go:build linux

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// inside is what a process of ours says of its own memory.
type inside struct {
	Goroutines int64
	Heap       int64 // bytes of live objects and the space around them
	Stack      int64 // bytes of goroutines' stacks
}

// lookInside asks a process of ours, which collects its garbage first: what is
// resident must have been taken before. There is none of a stock process.
func (w *world) lookInside(p *netspace.Process) (in inside, ok bool, err error) {
	admin, ok := w.admins[p]
	if !ok {
		return in, false, nil
	}
	heap, err := w.space.Get(p.Host, admin, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return in, true, err
	}
	goroutines, err := w.space.Get(p.Host, admin, "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return in, true, err
	}
	in, err = parseInside(string(goroutines), string(heap))
	return in, true, err
}

// parseInside reads the texts that package runtime/pprof writes.
func parseInside(goroutines, heap string) (in inside, err error) {
	for _, f := range []struct {
		text, prefix string
		to           *int64
	}{
		{goroutines, "goroutine profile: total ", &in.Goroutines},
		{heap, "# HeapInuse = ", &in.Heap},
		{heap, "# Stack = ", &in.Stack}, // in use / of the system
	} {
		number, ok := after(f.text, f.prefix)
		if !ok {
			return in, fmt.Errorf("a profile has no line %q", f.prefix)
		}
		number, _, _ = strings.Cut(number, " ")
		if *f.to, err = strconv.ParseInt(number, 10, 64); err != nil {
			return in, fmt.Errorf("a profile's line %q: %w", f.prefix, err)
		}
	}
	return in, nil
}

// after returns the rest of the first line that begins with the prefix.
func after(text, prefix string) (rest string, ok bool) {
	for line := range strings.Lines(text) {
		if rest, ok = strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}
