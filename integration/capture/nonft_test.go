//go:build linux

package capture

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutNetfilter, set in its environment, has this program become that of its arguments, for whom the kernel has no
// netfilter: it answers as one that was built without.
const withoutNetfilter = "ISTHMUS_TEST_WITHOUT_NETFILTER"

// becomeWithoutNetfilter does not return unless it fails.
func becomeWithoutNetfilter(args []string) error {
	runtime.LockOSThread() // the filter is this thread's, and the program's that it becomes
	const number, first, third = 0, 16, 32
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	unless := func(k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: k}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	filter := []unix.SockFilter{
		load(number), unless(unix.SYS_SOCKET, 5),
		load(first), unless(unix.AF_NETLINK, 3),
		load(third), unless(unix.NETLINK_NETFILTER, 1),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)),
		answer(unix.SECCOMP_RET_ALLOW),
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program))); e != 0 {
		return e
	}
	return syscall.Exec(args[0], args, slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, withoutNetfilter+"=") }))
}

// On a kernel without nf_tables pods are not captured. Their node proxy says so, and what the kernel lacks, and leaves
// nothing of its own in them: what they open goes as without us.
func TestAKernelWithoutNetfilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 10*time.Second))
	w.write(t, "release.yaml", strings.Replace(w.node("a", admin, "shop-1", "shop-2"), "scope: vips", "scope: release", 1))
	release := w.process("node-a", "release")
	must(t, w.Start(release, w.Ready("node-a", admin)))
	must(t, release.Stop(syscall.SIGTERM, 10*time.Second))

	for _, scope := range []string{"vips", "all"} {
		w.write(t, "node-a.yaml", strings.Replace(w.node("a", admin, "shop-1", "shop-2"), "scope: vips", "scope: "+scope, 1))
		p := w.process("node-a", "node-a")
		self, err := os.Executable()
		must(t, err)
		p.Args, p.Env = append([]string{self}, p.Args...), append(p.Env, withoutNetfilter+"=yes")
		must(t, w.Start(p, w.Ready("node-a", admin)))
		said := w.told(t, admin)
		for _, pod := range []string{"shop-1", "shop-2"} {
			if !slices.ContainsFunc(said, func(s string) bool {
				return strings.Contains(s, pod) && strings.Contains(s, "this kernel needs nf_tables")
			}) {
				t.Errorf("scope %s: problems are %q, want that %s is named, and nf_tables", scope, said, pod)
			}
			for _, port := range []string{"15001", "15006", "15008"} {
				if c, err := w.Dial(pod, "127.0.0.1:"+port); err == nil {
					c.Close()
					t.Errorf("scope %s: somebody listens at port %s of %s", scope, port, pod)
				} else if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Error(err)
				}
			}
			if _, err := w.call(pod, fmt.Sprintf("%s:8080", addresses["hello-1"])); err != nil {
				t.Errorf("scope %s: what %s opens to others: %v", scope, pod, err)
			}
		}
		must(t, p.Stop(syscall.SIGTERM, 10*time.Second))
	}
}
