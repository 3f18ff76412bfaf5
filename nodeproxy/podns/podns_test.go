//go:build linux

package podns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func space(t testing.TB) *netspace.Space {
	t.Helper()
	netspace.NeedRoot(t)
	s, err := netspace.New("podns")
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	must(t, s.Segment("net", map[string][]string{"pod": {"10.71.1.1"}, "other": {"10.71.1.2"}}))
	return s
}

func TestSocketsAreThoseOfTheNamespace(t *testing.T) {
	s := space(t)
	ns, err := Open(s.Path("pod"))
	must(t, err)
	defer ns.Close()
	home, err := Own()
	must(t, err)
	if ns.ID() == home {
		t.Fatal("the namespace is the process's own")
	}
	lc := net.ListenConfig{Control: ns.Control}
	l, err := lc.Listen(t.Context(), "tcp", "10.71.1.1:8080") // an address that only the pod has
	must(t, err)
	defer l.Close()
	u, err := lc.ListenPacket(t.Context(), "udp", "10.71.1.1:8080")
	must(t, err)
	defer u.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr())
			c.Close()
		}
	}()
	c, err := s.Dial("other", "10.71.1.1:8080")
	must(t, err)
	defer c.Close()
	b := make([]byte, 100)
	if n, _ := c.Read(b); !strings.HasPrefix(string(b[:n]), "10.71.1.2:") {
		t.Errorf("the listener says %q, want who has called", b[:n])
	}
	d := net.Dialer{Control: ns.Control, Timeout: time.Second}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			c, err := d.DialContext(t.Context(), "tcp", "10.71.1.1:8080")
			if err != nil {
				t.Error(err)
				return
			}
			c.Close()
		})
	}
	wg.Wait()
	addresses, err := ns.Addresses()
	if err != nil || !slices.Contains(addresses, netip.MustParseAddr("10.71.1.1")) {
		t.Errorf("addresses %v, %v, want 10.71.1.1 among them", addresses, err)
	}
}

// No goroutine is ever left on a thread in another namespace.
func TestThreadsComeBack(t *testing.T) {
	s := space(t)
	ns, err := Open(s.Path("pod"))
	must(t, err)
	defer ns.Close()
	home, err := Own()
	must(t, err)
	here := func() ID {
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", syscall.Gettid()))
		if err != nil {
			t.Error(err)
			return ID{}
		}
		defer f.Close()
		id, err := identify(f)
		if err != nil {
			t.Error(err)
		}
		return id
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			err := ns.Do(func() error {
				if here() != ns.ID() {
					t.Error("the function runs outside the namespace")
				}
				if i%50 == 0 {
					runtime.Goexit()
				}
				return nil
			})
			if (err != nil) != (i%50 == 0) {
				t.Errorf("run %d: %v", i, err)
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if here() != home {
				t.Error("a goroutine is in another namespace after Do")
			}
		})
	}
	wg.Wait()
}

func TestWhatIsNoNamespaceIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, "/proc/self/ns/mnt", "/dev/null", "/nowhere", t.TempDir()} {
		if ns, err := Open(path); err == nil {
			ns.Close()
			t.Errorf("%s is opened as a network namespace", path)
		}
	}
	ns, err := Open("/proc/self/ns/net")
	must(t, err)
	must(t, ns.Close())
	if err := ns.Do(func() error { return nil }); err == nil {
		t.Error("a closed namespace is entered")
	}
	lc := net.ListenConfig{Control: ns.Control}
	if l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0"); err == nil {
		l.Close()
		t.Error("a socket of a closed namespace is opened somewhere else")
	}
}

// Who lacks the right to enter is told which one it is.
func TestARightThatIsMissingIsNamed(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("drops a capability of root's")
	}
	f, err := os.Open("/proc/self/ns/net")
	must(t, err)
	defer f.Close()
	entered := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine, and what it lacks with it
		head, data := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capset(&head, &data[0]); err != nil {
			entered <- err
			return
		}
		entered <- enter(int(f.Fd()))
	}()
	if err := <-entered; err == nil || err.Error() != "setns: operation not permitted: give this process the capability SYS_ADMIN" {
		t.Errorf("%v, want the capability", err)
	}
}

func TestPodsByControlGroup(t *testing.T) {
	const uid = "0a1b2c3d-1111-2222-3333-444455556666"
	under := strings.ReplaceAll(uid, "-", "_")
	for text, want := range map[string]string{
		"0::/kubepods/burstable/pod" + uid + "/0123456789abcdef\n": uid,
		"0::/kubepods/pod" + uid + "\n":                            uid,
		"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under + ".slice/cri-containerd-1.scope\n": uid,
		"0::/kubepods.slice/kubepods-pod" + under + ".slice/crio-1.scope\n":                                                uid,
		"0::/../../pod" + uid + "/0123\n":                                           uid,
		"12:cpu:/system\n11:memory:/kubepods/pod" + uid + "/x\n0::/\n":              uid,
		"0::/kubepods/pod" + uid + "/x/podffffffff-ffff-ffff-ffff-ffffffffffff/y\n": uid,                                // made by the pod itself
		"0::/kubelet.slice/pod9c2f1c3e0a5d4d6f8e7b6a5c4d3e2f1a/x\n":                 "9c2f1c3e0a5d4d6f8e7b6a5c4d3e2f1a", // a static pod
		"0::/system.slice/podman.service\n":                                         "",
		"0::/user.slice/podcast\n":                                                  "",
		"0::/\n":                                                                    "", "": "", "nonsense": "", "0::": "", "0::/pod\n": "", "0::/kubepods-pod.slice\n": "",
	} {
		if got := podOf([]byte(text)); got != want {
			t.Errorf("%q is of pod %q, want %q", text, got, want)
		}
	}
}

// Processes of a pod that cannot be read for want of descriptors are not passed over: a younger one may be in a namespace
// of its own. One that has ended is.
func TestNoYoungerProcessIsTakenForLackOfDescriptors(t *testing.T) {
	const uid = "0a1b2c3d-0000-4000-8000-000000000001"
	for _, x := range []struct {
		file  string
		fails error
		want  string
	}{
		{"", nil, "7"},
		{"7/cgroup", unix.EMFILE, ""},
		{"7/stat", unix.ENFILE, ""},
		{"9/cgroup", unix.ENOMEM, ""},
		{"7/cgroup", unix.ENOENT, "8"},
		{"7/stat", unix.ESRCH, "8"},
	} {
		got, err := oldestOf([]string{"8", "self", "7", "9"}, func(id string) bool { return id == uid }, func(path string, _ []byte) ([]byte, error) {
			pid, name, _ := strings.Cut(path, "/")
			switch {
			case path == x.file && x.fails != nil:
				return nil, x.fails
			case name == "cgroup":
				return []byte("0::/kubepods/burstable/pod" + uid + "/container\n"), nil
			}
			return []byte(pid + " (app) S" + strings.Repeat(" 0", 18) + " " + pid + " 0\n"), nil // the lower the older
		})
		if got[uid].pid != x.want || Lacking(err) != (x.want == "") {
			t.Errorf("%s fails with %v: process %q, %v; want %q", x.file, x.fails, got[uid].pid, err, x.want)
		}
	}
}

func FuzzProcFiles(f *testing.F) {
	f.Add([]byte("0::/kubepods/pod0a1b2c3d-1111-2222-3333-444455556666/x\n"))
	f.Add([]byte("1 (a ) b) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 17 1 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, c := range podOf(b) {
			if !strings.ContainsRune("0123456789abcdef-", c) {
				t.Errorf("UID %q", podOf(b))
			}
		}
		startOf(b)
	})
}

// node is a proc file system whose processes are those of pods.
type node struct {
	dir string
	s   *netspace.Space
}

// run starts a process in a host, and shows it as one of a pod.
func (n *node) run(t *testing.T, host, uid string) (pid int, stop func()) {
	t.Helper()
	c := exec.Command("ip", "netns", "exec", filepath.Base(n.s.Path(host)), "sleep", "600")
	must(t, netspace.Launch(c))
	stop = sync.OnceFunc(func() { c.Process.Kill(); c.Wait() })
	t.Cleanup(stop)
	n.show(t, c.Process.Pid, uid)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) { // until it is sleep, in the namespace
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Process.Pid)); string(b) == "sleep\n" {
			return c.Process.Pid, stop
		}
	}
	t.Fatal("the process did not start")
	return 0, nil
}

// show has a directory of the node's own for a process: the machine's one with another control group.
func (n *node) show(t *testing.T, pid int, uid string) {
	t.Helper()
	dir := filepath.Join(n.dir, fmt.Sprint(pid))
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods/pod"+uid+"/x\n"), 0o600))
	for _, name := range []string{"stat", "ns", "root"} {
		must(t, os.Symlink(fmt.Sprintf("/proc/%d/%s", pid, name), filepath.Join(dir, name)))
	}
}

func TestFinderFindsTheNamespaceOfTheOldestProcess(t *testing.T) {
	s := space(t)
	n := &node{dir: t.TempDir(), s: s}
	const a, b, none = "aaaaaaaa-0000-0000-0000-000000000001", "bbbbbbbb-0000-0000-0000-000000000002", "cccccccc-0000-0000-0000-000000000003"
	_, stop := n.run(t, "pod", a)
	time.Sleep(20 * time.Millisecond) // two ticks of the clock that start times are in
	n.run(t, "other", a)              // has left for a namespace of its own
	n.show(t, os.Getpid(), b)         // runs in the node's own
	f := &Finder{Proc: n.dir}
	got, err := f.Find(map[string]bool{a: true, b: true, none: true})
	must(t, err)
	if len(got) != 1 || got[a] == nil {
		t.Fatalf("found %v, want one of pod %s alone", got, a)
	}
	pod := got[a]
	defer pod.Close()
	want, err := Open(s.Path("pod"))
	must(t, err)
	defer want.Close()
	if pod.Namespace.ID() != want.ID() {
		t.Error("it is not the namespace of the oldest process")
	}
	if !pod.Alive() {
		t.Error("a pod that runs is not alive")
	}
	var files unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &files))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: files.Max}))
	alive := pod.Alive()
	again, err := openSandbox(filepath.Join(n.dir, "1"), 0)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &files))
	if !alive {
		t.Error("a pod is not alive while there are no descriptors")
	}
	if again != nil || !Lacking(err) {
		t.Errorf("open a sandbox without descriptors: %v, %v", again, err)
	}
	if text, err := pod.ReadFile("/etc/hostname"); err != nil || len(text) == 0 {
		t.Errorf("a file of the pod is %q, %v", text, err)
	}
	for _, path := range []string{"/dev/zero", "/etc", "/nowhere", "/proc/self/root/etc/hostname"} {
		if text, err := pod.ReadFile(path); err == nil {
			t.Errorf("%s is read as %q, want an error", path, text)
		}
	}
	stop()
	if pod.Alive() {
		t.Error("a pod whose process has ended is alive")
	}
	if got, err := f.Find(nil); got != nil || err != nil {
		t.Errorf("for nobody: %v, %v", got, err)
	}
	if _, err := (&Finder{Proc: "/nowhere"}).Find(map[string]bool{a: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a proc file system: %v", err)
	}
}

func BenchmarkDial(b *testing.B) {
	s := space(b)
	ns, err := Open(s.Path("pod"))
	must(b, err)
	defer ns.Close()
	lc := net.ListenConfig{Control: ns.Control}
	l, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:8080")
	must(b, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	d := net.Dialer{Control: ns.Control, Timeout: time.Second}
	for b.Loop() {
		c, err := d.DialContext(b.Context(), "tcp", "127.0.0.1:8080")
		must(b, err)
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}

// A zone of an address is an interface of the pod, which the process itself does not have.
func TestAZoneIsAnInterfaceOfTheNamespace(t *testing.T) {
	s := space(t)
	ns, err := Open(s.Path("pod"))
	must(t, err)
	defer ns.Close()
	must(t, s.IP("pod", "link add zoned0 type veth peer name zoned1"))
	if _, err := net.InterfaceByName("zoned0"); err == nil {
		t.Fatal("the process has such an interface too")
	}
	if i, err := ns.Interface("zoned0"); err != nil || i < 2 {
		t.Errorf("zoned0 has number %d, %v", i, err)
	}
	if _, err := ns.Interface("nosuch0"); err == nil {
		t.Error("an interface that is not there has a number")
	}
}
