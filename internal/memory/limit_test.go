package memory

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCgroupLimitReadsBothVersions(t *testing.T) {
	const v1, v2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // 0: none
	}{
		"version 2":                   {map[string]string{"proc/self/cgroup": "0::/pod/app\n", v2 + "/pod/app/memory.max": "536870912\n", v2 + "/pod/memory.max": "max\n"}, 512 << 20},
		"version 2, parent is less":   {map[string]string{"proc/self/cgroup": "0::/pod/app\n", v2 + "/pod/app/memory.max": "536870912\n", v2 + "/pod/memory.max": "268435456\n"}, 256 << 20},
		"version 2, in a container":   {map[string]string{"proc/self/cgroup": "0::/\n", v2 + "/memory.max": "536870912\n"}, 512 << 20},
		"version 2, no limit":         {map[string]string{"proc/self/cgroup": "0::/a\n", v2 + "/a/memory.max": "max\n"}, 0},
		"version 1":                   {map[string]string{"proc/self/cgroup": "3:cpu,cpuacct:/a\n4:memory:/a\n0::/b\n", v1 + "/a/memory.limit_in_bytes": "536870912\n", v1 + "/memory.limit_in_bytes": "9223372036854771712\n"}, 512 << 20},
		"version 1, path of the host": {map[string]string{"proc/self/cgroup": "4:memory:/kubepods/x\n", v1 + "/memory.limit_in_bytes": "536870912\n"}, 512 << 20},
		"version 1, no limit":         {map[string]string{"proc/self/cgroup": "4:memory:/a\n", v1 + "/a/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"no cgroups":                  {nil, 0},
		"nonsense":                    {map[string]string{"proc/self/cgroup": "memory\n::\n0::/a\n", v2 + "/a/memory.max": "much\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range c.files {
				p := filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, ok := cgroupLimit(root)
			if !ok {
				got = 0
			}
			if got != c.want {
				t.Errorf("limit %d, want %d", got, c.want)
			}
		})
	}
}

func TestSocketBytesCountInVersion2(t *testing.T) {
	root := t.TempDir()
	write := func(file, text string) {
		p := filepath.Join(root, file)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/self/cgroup", "4:memory:/a\n")
	if n := socketBytes(root); n != 0 {
		t.Errorf("version 1: %d bytes of sockets, want 0", n)
	}
	write("proc/self/cgroup", "0::/pod/app\n")
	write("sys/fs/cgroup/memory.stat", "anon 5\nsock 7340032\nshmem 0\n")
	if n := socketBytes(root); n != 7<<20 {
		t.Errorf("version 2, in a container: %d bytes of sockets, want %d", n, 7<<20)
	}
}

// Whatever sockets hold: heap and sockets fit into the cgroup until the heap is at half.
func TestHeapLimitLeavesRoomForSockets(t *testing.T) {
	const cgroup, heap = 512 << 20, 460 << 20
	for n := int64(0); n <= cgroup; n += 1 << 20 {
		got := heapLimit(heap, cgroup, n)
		if got > heap || got < heap/2 {
			t.Errorf("beside %d bytes of sockets the heap may have %d", n, got)
		}
		if got > heap/2 && got+n > cgroup {
			t.Errorf("%d bytes of sockets and a heap of %d exceed the cgroup", n, got)
		}
	}
}
