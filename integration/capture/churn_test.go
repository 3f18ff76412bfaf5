//go:build linux

package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// sandbox is the process that holds a pod's namespace, which has an address and nothing else.
type sandbox struct {
	uid, address string
	cmd          *exec.Cmd
}

// kubelet starts and stops pods of one node, and shows them as a node's proc file system does.
type kubelet struct {
	*world
	proc string
	pods []*sandbox
	next int
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	netspace.NeedRoot(t)
	s, err := netspace.New("churn")
	k := &kubelet{world: &world{Space: s, bin: bin, nodes: map[string]*netspace.Process{}}}
	t.Cleanup(func() {
		for _, p := range k.pods {
			p.cmd.Process.Kill()
			p.cmd.Wait()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	must(t, s.Segment("all", map[string][]string{"node-a": {"10.71.1.1"}}))
	k.proc = filepath.Join(s.Dir, "proc")
	emptyProc(t, k.proc)
	k.isthmus(t, "ca", "init", "--dir", "ca", "--trust-domain", "cluster.local")
	k.publish(t)
	k.write(t, "node-a.yaml", "node: node-a\nnetwork: net-a\nfederation: {health: false}\n"+k.common(admin)+"capture: {scope: vips, proc: "+k.proc+"}\n")
	return k
}

// pod starts one.
func (k *kubelet) pod(t *testing.T) *sandbox {
	t.Helper()
	k.next++
	p := &sandbox{uid: fmt.Sprintf("0a1b2c3d-0000-0000-0000-%012d", k.next), address: fmt.Sprintf("10.72.%d.%d", k.next/250, k.next%250+1)}
	k.run(t, p)
	k.pods = append(k.pods, p)
	return p
}

// route is that of every second pod, so that its application can see who its clients are.
func route(n int) string {
	if n%2 == 0 {
		return "ip route add default dev lo"
	}
	return "true"
}

// run makes the sandbox of a pod.
func (k *kubelet) run(t *testing.T, p *sandbox) {
	t.Helper()
	p.cmd = exec.Command("unshare", "-n", "sh", "-c", "ip link set lo up && ip addr add "+p.address+"/32 dev lo && "+route(k.next)+" && echo up && exec sleep 600")
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, netspace.Launch(p.cmd))
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		t.Fatalf("a pod says %q, %v", line, err)
	}
	dir := filepath.Join(k.proc, fmt.Sprint(p.cmd.Process.Pid))
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte("0::/kubepods/pod"+p.uid+"/sandbox\n"), 0o600))
	for _, name := range []string{"stat", "ns", "root"} {
		must(t, os.Symlink(fmt.Sprintf("/proc/%d/%s", p.cmd.Process.Pid, name), filepath.Join(dir, name)))
	}
}

// end is the end of a sandbox.
func (k *kubelet) end(t *testing.T, p *sandbox) {
	t.Helper()
	p.cmd.Process.Kill()
	p.cmd.Wait()
	must(t, os.RemoveAll(filepath.Join(k.proc, fmt.Sprint(p.cmd.Process.Pid))))
}

// stop ends the i-th pod.
func (k *kubelet) stop(t *testing.T, i int) {
	t.Helper()
	p := k.pods[i]
	k.pods = slices.Delete(k.pods, i, i+1)
	k.end(t, p)
}

// publish tells discovery which pods there are.
func (k *kubelet) publish(t *testing.T) {
	t.Helper()
	var b strings.Builder
	b.WriteString("trustDomain: cluster.local\nnetworks: [{name: net-a, nodes: [node-a]}]\nservices: [{name: hello, namespace: demo, global: true, vips: [\"240.240.0.1\"], ports: [{name: http, port: 80, targetPort: 8080}]}]\nworkloads:\n")
	for _, p := range k.pods {
		fmt.Fprintf(&b, "  - {uid: %s, namespace: demo, serviceAccount: shop, network: net-a, node: node-a, addresses: [%s]}\n", p.uid, p.address)
	}
	if len(k.pods) == 0 {
		b.WriteString("  []\n")
	}
	k.write(t, "mesh.yaml", b.String())
}

// captured connects from a pod to a virtual address, and reports whether somebody has it.
func (p *sandbox) captured(t *testing.T) bool {
	t.Helper()
	out, err := exec.Command("nsenter", "-t", fmt.Sprint(p.cmd.Process.Pid), "-n", "cat", "/proc/net/tcp").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Contains(string(out), "0100007F:3A99 00000000:0000 0A") // 127.0.0.1:15001, listens
}

// descriptors are those of a process, by what they are.
func descriptors(t *testing.T, pid int) (namespaces, all int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range list {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		all++
		if strings.HasPrefix(to, "net:") {
			namespaces++
		}
	}
	return namespaces, all
}

// Pods come and go, twenty a second: each is captured as soon as discovery has it, and nothing is left of
// those that are gone.
func TestPodsComeAndGo(t *testing.T) { podsComeAndGo(t, "vips", 250, 400) }

// The same holds for fewer of them whose connections are all captured.
func TestPodsComeAndGoWithScopeAll(t *testing.T) {
	t.Parallel()
	podsComeAndGo(t, "all", 60, 150)
}

// podsComeAndGo has so many pods at most, and at least so many of them come or go.
func podsComeAndGo(t *testing.T, scope string, most, steps int) {
	t.Helper()
	k := newKubelet(t)
	text, err := os.ReadFile(k.file("node-a.yaml"))
	must(t, err)
	k.write(t, "node-a.yaml", strings.Replace(string(text), "scope: vips", "scope: "+scope, 1))
	k.start(t, "node-a")
	pid := k.nodes["node-a"].PID()
	_, before := descriptors(t, pid)
	rng := rand.New(rand.NewPCG(1, 2))
	began := time.Now()
	for n := 0; len(k.pods) < most || n < steps; n++ {
		if due := began.Add(time.Duration(n) * 50 * time.Millisecond); time.Until(due) > 0 {
			time.Sleep(time.Until(due))
		}
		if len(k.pods) > 0 && (len(k.pods) >= most || rng.IntN(5) == 0) {
			k.stop(t, rng.IntN(len(k.pods)))
		} else {
			k.pod(t)
		}
		if n%10 == 9 {
			k.publish(t)
		}
	}
	k.publish(t)
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		missing := 0
		for _, p := range k.pods {
			if !p.captured(t) {
				missing++
			}
		}
		if missing == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d pods are not captured", missing, len(k.pods))
		}
	}
	spaces, all := descriptors(t, pid)
	for end := time.Now().Add(5 * time.Second); spaces > len(k.pods)+1 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		spaces, all = descriptors(t, pid) // the last ones are just being left
	}
	t.Logf("scope %s, %d pods after %v: %d descriptors of namespaces, %d in all (%d before), %s", scope, len(k.pods), time.Since(began), spaces, all, before, delays(t, k.file("node-a.log")))
	if spaces > len(k.pods)+1 {
		t.Errorf("%d namespaces are open for %d pods", spaces, len(k.pods))
	}
	for len(k.pods) > 0 {
		k.stop(t, 0)
	}
	k.publish(t)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		spaces, all = descriptors(t, pid)
		if spaces <= 1 && all <= before+2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("when all pods are gone %d namespaces and %d descriptors are open, want 1 and %d", spaces, all, before)
		}
	}
}

// delays says how long after discovery had them pods were captured, by the log.
func delays(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	var known time.Time
	var all []time.Duration
	for line := range strings.Lines(string(text)) {
		_, rest, ok := strings.Cut(line, `"time":"`)
		if !ok {
			continue
		}
		at, _, _ := strings.Cut(rest, `"`)
		when, err := time.Parse(time.RFC3339Nano, at)
		must(t, err)
		switch {
		case strings.Contains(line, `"discovery changed"`):
			known = when
		case strings.Contains(line, `"captured"`) && !known.IsZero():
			all = append(all, when.Sub(known))
		}
	}
	if bad := strings.Count(string(text), `"level":"error"`); bad > 0 {
		i := strings.Index(string(text), `"level":"error"`)
		t.Errorf("%d errors in the log, the first: %s", bad, string(text)[i:min(len(text), i+300)])
	}
	slices.Sort(all)
	if len(all) == 0 {
		return "none captured"
	}
	return fmt.Sprintf("captured %v (median), %v (99 %%), %v (most) after discovery changed", all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
}

// A pod whose sandbox is made anew, as after a restart of its node, is captured in the new namespace, and nothing of the
// one before is kept.
func TestASandboxIsMadeAnew(t *testing.T) {
	k := newKubelet(t)
	p := k.pod(t)
	k.publish(t)
	k.start(t, "node-a")
	pid := k.nodes["node-a"].PID()
	await := func() time.Duration {
		t.Helper()
		began := time.Now()
		for !p.captured(t) {
			if time.Since(began) > 5*time.Second {
				t.Fatalf("not captured: %s", netspace.Tail(k.file("node-a.log")))
			}
			time.Sleep(5 * time.Millisecond)
		}
		return time.Since(began)
	}
	await()
	_, before := descriptors(t, pid)
	var took []time.Duration
	for range 100 {
		k.end(t, p)
		k.run(t, p)
		took = append(took, await())
	}
	slices.Sort(took)
	t.Logf("captured in the new namespace after %v (median), %v (most)", took[50], took[99])
	if took[99] > time.Second || took[50] > 500*time.Millisecond { // a quiet machine needs a tenth of it
		t.Errorf("it took %v (median), the longest %v; want 500 ms at most, and within a second", took[50], took[99])
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		spaces, all := descriptors(t, pid)
		if spaces <= 2 && all <= before {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d namespaces and %d descriptors are open, want 2 and %d", spaces, all, before)
		}
	}
}
