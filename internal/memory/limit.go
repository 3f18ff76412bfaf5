package memory

import (
	"context"
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// budgetPart is the part of the process's memory that is the budget: a third. The rest
// is for what is not counted: the model of the mesh, sessions, stacks, and garbage,
// which may be as much as the buffers.
const budgetPart = 3

// OfProcess returns the budget of this process, from GOMEMLIMIT or the memory limit of
// its cgroup, whichever is less. Without either it is nil. Without GOMEMLIMIT it sets
// the runtime's memory limit to nine tenths of the cgroup's, so that garbage does not
// fill the cgroup.
func OfProcess() *Budget {
	limit := debug.SetMemoryLimit(-1)
	cgroup, ok := cgroupLimit("/")
	if ok {
		if limit == math.MaxInt64 {
			debug.SetMemoryLimit(cgroup / 10 * 9)
		}
		limit = min(limit, cgroup/10*9)
	}
	if limit == math.MaxInt64 {
		return nil
	}
	b := NewBudget(limit / budgetPart)
	if ok {
		b.heap, b.cgroup = limit, cgroup
		b.sockets = func() int64 { return socketBytes("/") }
	}
	return b
}

const (
	sampleEvery = 500 * time.Millisecond
	// otherPart is the part of the cgroup's limit that neither the Go runtime nor
	// sockets use: the program, page tables, files in /tmp. It is a twentieth.
	otherPart = 20
)

// Run keeps the runtime and the kernel together within the limit of the cgroup, until ctx
// ends. Under version 2 the buffers of sockets count for the cgroup: as they grow the
// garbage collector gets less room.
func (b *Budget) Run(ctx context.Context) {
	if b == nil || b.sockets == nil {
		return
	}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for last := b.heap; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n := b.sockets()
		b.kernel.Store(n)
		if limit := heapLimit(b.heap, b.cgroup, n); limit != last {
			debug.SetMemoryLimit(limit)
			last = limit
		}
	}
}

// heapLimit is the memory limit of the runtime beside n bytes of socket buffers: at most
// heap, and never less than half of it, as the collector would do nothing else.
func heapLimit(heap, cgroup, n int64) int64 {
	return max(heap/2, min(heap, cgroup-cgroup/otherPart-n))
}

// socketBytes is what the kernel holds for sockets of this process's cgroup. It is zero
// under version 1, where that does not count for the memory limit.
func socketBytes(root string) int64 {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, p := range []string{p, "/"} {
			stat, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", p, "memory.stat"))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(stat)) {
				if v, ok := strings.CutPrefix(line, "sock "); ok {
					n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
					return n
				}
			}
		}
	}
	return 0
}

// cgroupLimit returns the least memory limit, in bytes, of the cgroup of this process
// and of those above it, of version 1 or 2. root is that of the file system.
func cgroupLimit(root string) (least int64, ok bool) {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, false
	}
	least = math.MaxInt64
	for line := range strings.Lines(string(b)) {
		// hierarchy:controllers:path, where version 2 has hierarchy 0 and no controllers
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		dir, file := "sys/fs/cgroup", "memory.max"
		switch {
		case strings.Contains(","+part[1]+",", ",memory,"):
			dir, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case part[1] != "":
			continue
		}
		// In a container the path may be the host's and not be there: its own cgroup is
		// mounted as the top then.
		for p := path.Clean("/" + part[2]); ; p = path.Dir(p) {
			if n, ok := readLimit(filepath.Join(root, dir, p, file)); ok {
				least = min(least, n)
			}
			if p == "/" {
				break
			}
		}
	}
	return least, least < unlimited
}

// unlimited is what version 1 has for no limit, rounded down to a page of 64 KiB.
const unlimited = math.MaxInt64 &^ (1<<16 - 1)

func readLimit(file string) (int64, bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no number
	return n, err == nil && n > 0
}
