package kubernetes

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

var global = map[string]string{"istio.io/global": "true"}

const hello = "hello.demo.svc.cluster.local:8080"

// shop is a world of two clusters: clients on east, and a global service on west.
type shop struct {
	*world
	east, west    *side
	client, other *demoPod // on two nodes of east
	servers       []*demoPod
}

// openShop starts a world whose west has so many pods of hello, on two nodes.
func openShop(t *testing.T, gateways, pods int, more string, ports ...int) *shop {
	t.Helper()
	return newWorld(t, 2, "east", "west").openShop(t, gateways, pods, more, ports...)
}

// openShop is openShop of a world that is there.
func (w *world) openShop(t *testing.T, gateways, pods int, more string, ports ...int) *shop {
	t.Helper()
	began := time.Now()
	s := &shop{world: w, east: w.side("east"), west: w.side("west")}
	s.client = s.east.run(t, "shop", "shop-1", s.east.nodes[0])
	s.client.say(t, corev1.ConditionTrue)
	s.other = s.east.run(t, "shop", "shop-2", s.east.nodes[1])
	s.other.say(t, corev1.ConditionTrue)
	s.west.expose(t, "hello", global, ports...)
	for i := range pods {
		p := s.west.run(t, "hello", "hello-"+string(rune('a'+i)), s.west.nodes[i%2], ports...)
		p.say(t, corev1.ConditionTrue)
		s.servers = append(s.servers, p)
	}
	w.startGateways(gateways, more)
	w.startNodes()
	w.started()
	eventually(t, 30*time.Second, "a pod of west answers a pod of east", func() bool { return s.client.call(hello).err == nil && s.other.call(hello).err == nil })
	t.Logf("the world runs after %v", time.Since(began).Round(100*time.Millisecond))
	return s
}

func TestPodOfOneClusterCallsAnother(t *testing.T) {
	s := openShop(t, 1, 2, "", 8080)
	seen := map[string]bool{}
	eventually(t, 10*time.Second, "both pods answer", func() bool {
		a := s.client.call(hello)
		if a.err != nil {
			t.Fatal(a.err)
		}
		seen[a.pod] = true
		return len(seen) == 2
	})
	// isthmus check, asked at both gateways, sees the link in both directions.
	for _, side := range []*side{s.east, s.west} {
		if out, code := s.check(t, side.gateways[0].Host, "--wait", "20s"); code != 0 || !strings.Contains(out, "✓ ISTH-305") || !strings.Contains(out, "✓ ISTH-308") {
			t.Errorf("check at %s exits with %d:\n%s", side.network, code, out)
		}
	}
	if out, code := s.check(t, s.client.node.name); code != 0 || !strings.Contains(out, "✓ ISTH-306") {
		t.Errorf("check at a node proxy exits with %d:\n%s", code, out)
	}
	// The network that the clusters are on lets nobody by the gateways.
	if err := s.In(s.client.node.name, func() error {
		c, err := net.DialTimeout("tcp", s.servers[0].address+":8080", time.Second)
		if err == nil {
			c.Close()
			t.Error("a node of east reaches a pod of west without a gateway")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.must(s.west.gateways[0].Stop(os.Kill, time.Minute))
	eventually(t, 30*time.Second, "check at east says that nobody of west is heard", func() bool {
		out, code := s.check(t, s.east.gateways[0].Host)
		return code == 1 && strings.Contains(out, "✗ ISTH-305") && strings.Contains(out, "✗ ISTH-308")
	})
}

// check runs isthmus check in a host, of the process there.
func (w *world) check(t *testing.T, host string, more ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), append([]string{"check", "--admin", adminAddress}, more...)...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	w.must(w.In(host, cmd.Start))
	cmd.Wait()
	return b.String(), cmd.ProcessState.ExitCode()
}
