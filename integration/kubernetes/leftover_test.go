package kubernetes

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cgroup is the name of the node's control group, which the groups of its pods are in.
func (n *realNode) cgroup() string { return fmt.Sprintf("isthmus-%d-%s", os.Getpid(), n.name) }

// cgroupHierarchies are where control groups are made: one for each controller (version 1),
// or a single one.
func cgroupHierarchies(t *testing.T) (out []string) {
	t.Helper()
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		return []string{root}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup" {
			out = append(out, f[1])
		}
	}
	if len(out) == 0 {
		t.Fatal("no control groups are mounted below /sys/fs/cgroup: a kubelet needs them")
	}
	return out
}

// leavesNothing makes the node's directory and control groups, and a guard that removes them
// when the test, or this process, is over. It is registered before what else the test ends.
func (n *realNode) leavesNothing(t *testing.T) {
	t.Helper()
	var err error
	if n.dir, err = os.MkdirTemp("", "isthmus-node-"); err != nil {
		t.Fatal(err)
	}
	hierarchies := cgroupHierarchies(t)
	// Processes end a little after the first one of their namespace, and only then can their groups go.
	guard := exec.Command("sh", "-c", `read -r _; dir=$1; shift
for i in $(seq 300); do
  for g; do [ ! -d "$g" ] || find "$g" -depth -type d -exec rmdir {} + 2>/dev/null; done
  left=; for g; do [ ! -d "$g" ] || left=$g; done
  [ -n "$left" ] || { rm -rf "$dir" && exit; }
  sleep 0.1
done; echo "left: $left $dir"; exit 1`, "guard", n.dir)
	for _, h := range append(hierarchies, "/sys/fs/cgroup/unified") { // which some have beside version 1
		guard.Args = append(guard.Args, filepath.Join(h, n.cgroup()))
	}
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // not reached by an interrupt from the terminal
	var said strings.Builder
	guard.Stdout, guard.Stderr = &said, &said
	hold, err := guard.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := guard.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		hold.Close()
		if err := guard.Wait(); err != nil {
			t.Errorf("the node was not removed: %v %s", err, said.String())
		}
	})
	for _, h := range hierarchies {
		group := filepath.Join(h, n.cgroup())
		if err := os.Mkdir(group, 0o755); err != nil {
			t.Fatalf("a kubelet needs to make control groups: %v", err)
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} { // a new group of version 1 has none
			if all, err := os.ReadFile(filepath.Join(h, f)); err == nil {
				if err := os.WriteFile(filepath.Join(group, f), all, 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// remains says where to look for what is left of a node.
type remains struct{ cgroup, dir, space string }

// left lists processes, mounts, control groups, network namespaces and files.
func (r remains) left() (all []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + r.cgroup, "/sys/fs/cgroup/*/" + r.cgroup, r.dir, r.space, "/run/netns/isthmus-kubelet-" + strings.Split(r.cgroup, "-")[1] + "-*"} {
		found, _ := filepath.Glob(pattern)
		all = append(all, found...)
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range processes {
		groups, _ := os.ReadFile(p + "/cgroup")
		line, _ := os.ReadFile(p + "/cmdline")
		if bytes.Contains(groups, []byte(r.cgroup)) || bytes.Contains(line, []byte(r.dir)) {
			all = append(all, p+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, r.dir) {
			all = append(all, line)
		}
	}
	return all
}

// TestOwnerOfANode is no test: it is the process that the next one ends.
func TestOwnerOfANode(t *testing.T) {
	how := os.Getenv("NODE_OWNER")
	if how == "" {
		return
	}
	w := newRealWorld(t, []string{"bridge"}, "west")
	w.does(t, "kubectl --context west apply -f docs/kubernetes/west.yaml")
	w.wait(t, "west", "--namespace demo rollout status deployment/hello", 3*time.Minute)
	n := w.nodes["west"]
	fmt.Printf("owner %s %s %s\n", n.cgroup(), n.dir, w.Space.Dir)
	if how == "fails" {
		t.Fatal("this test fails, as it should")
	}
	<-t.Context().Done()
}

// However a test with a node ends, nothing of the node stays: also while its pods run.
func TestKubeletNodeLeavesNothing(t *testing.T) {
	needContainers(t)
	for _, how := range []string{"fails", "killed"} {
		t.Run(how, func(t *testing.T) {
			owner := exec.Command(os.Args[0], "-test.run=^TestOwnerOfANode$")
			owner.Env = append(os.Environ(), "NODE_OWNER="+how)
			out, err := owner.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := owner.Start(); err != nil {
				t.Fatal(err)
			}
			var r remains
			if _, err := fmt.Fscanf(out, "owner %s %s %s\n", &r.cgroup, &r.dir, &r.space); err != nil {
				rest, _ := io.ReadAll(out)
				t.Fatalf("%v: %s", err, rest)
			}
			if how == "killed" {
				if before := r.left(); len(before) < 15 {
					t.Errorf("before it is killed there are %q, want processes, control groups, namespaces and files", before)
				}
				owner.Process.Kill()
			}
			rest, _ := io.ReadAll(out)
			if err := owner.Wait(); err == nil {
				t.Errorf("the owner ended well: %s", rest)
			}
			for end := time.Now().Add(40 * time.Second); len(r.left()) > 0; time.Sleep(100 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("there are still %q\n%s", r.left(), rest)
				}
			}
		})
	}
}
