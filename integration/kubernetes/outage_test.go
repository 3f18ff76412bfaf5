package kubernetes

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// outage is how long API servers are away: the environment says more than a test has
// time for.
func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("OUTAGE")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("OUTAGE=%q: %v", text, err)
	}
	return d
}

// kubernetesOf is what a gateway says of its cluster.
type kubernetesOf struct {
	Synced bool
	AgeMS  int64
	Held   string
	Cache  struct {
		Restored bool
		Saved    time.Time
		Error    string
	}
	Lists []listOf
}

type listOf struct {
	Kind          string
	Objects, Held int
	Failing       bool
	LastError     string
}

func (w *world) kubernetes(t *testing.T, gateway *netspace.Process) (k kubernetesOf) {
	t.Helper()
	b, err := w.Get(gateway.Host, adminAddress, "/state")
	w.must(err)
	var s struct{ Kubernetes kubernetesOf }
	w.must(json.Unmarshal(b, &s))
	return s.Kubernetes
}

// asked is how many lists and watches of nodes and namespaces, which this test does not ask
// for, the API server has answered since its start.
func (s *side) asked(t *testing.T) (n int) {
	t.Helper()
	b, err := s.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	s.world.must(err)
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || strings.Contains(line, `verb="GET"`) {
			continue
		}
		for _, kind := range []string{"nodes", "namespaces"} {
			if strings.Contains(line, `resource="`+kind+`"`) && (strings.Contains(line, `verb="LIST"`) || strings.Contains(line, `verb="WATCH"`)) {
				x, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
				n += int(x)
			}
		}
	}
	return n
}

func TestAPIServerIsAwayUnderTraffic(t *testing.T) {
	s := openShop(t, 2, 4, ", cache: CACHE", 8080)
	first, second := s.west.gateways[0], s.west.gateways[1]
	eventually(t, 20*time.Second, "the gateways have caches", func() bool {
		return !s.kubernetes(t, first).Cache.Saved.IsZero() && !s.kubernetes(t, second).Cache.Saved.IsZero()
	})
	load := s.client.start(hello, 20*time.Millisecond)
	away := outage(t)
	for _, side := range s.sides {
		side.server.Process.Kill()
		side.server.Wait()
	}
	began := time.Now()
	eventually(t, away+time.Minute, "the half of the time is over", func() bool { return time.Since(began) > away/2 })
	for _, g := range []*netspace.Process{first, second} {
		s.must(g.Stop(syscall.SIGTERM, time.Minute))
		s.must(s.Start(g, s.Ready(g.Host, adminAddress)))
		k := s.kubernetes(t, g)
		if !k.Cache.Restored || !k.Synced || k.AgeMS < 1000 {
			t.Errorf("a gateway that starts without the API server says %+v; want what its cache has, and how old that is", k)
		}
		t.Logf("a gateway started from a cache that is %v old", time.Duration(k.AgeMS)*time.Millisecond)
	}
	eventually(t, away+time.Minute, "the time is over", func() bool { return time.Since(began) > away })
	if k := s.kubernetes(t, second); time.Duration(k.AgeMS)*time.Millisecond < away/2 {
		t.Errorf("age %d ms after %v without an API server", k.AgeMS, away)
	}
	for _, side := range s.sides {
		side.server = side.serve()
	}
	for _, side := range s.sides {
		side.await(t)
	}
	took := eventually(t, 3*time.Minute, "the clusters are followed again", func() bool {
		for _, side := range s.sides {
			for _, g := range side.gateways {
				if k := s.kubernetes(t, g); k.AgeMS != 0 || k.Cache.Restored {
					return false
				}
			}
		}
		return true
	})
	t.Logf("API servers back → all gateways follow them: %v", took.Round(10*time.Millisecond))
	// Two gateways list and watch two kinds, the controller manager one; some come too early.
	n := s.east.asked(t)
	t.Logf("since it is back the API server of east was asked for %d lists and watches of nodes and namespaces", n)
	if n > 40 {
		t.Errorf("the API server of east was asked %d times since it is back, want at most 40: that is a herd", n)
	}
	// What changes now is followed.
	p := s.west.run(t, "hello", "hello-late", s.west.nodes[0], 8080)
	p.awaitNode(t)
	ready := time.Now()
	p.say(t, "True")
	eventually(t, 10*time.Second, "a new pod answers", func() bool { return load.answered(p, ready) > 0 })
	flawless(t, load.Stop())
}

func TestRightsThatAreTakenAwayTakeNothingElse(t *testing.T) {
	s := openShop(t, 1, 2, "", 8080)
	load := s.client.start(hello, 20*time.Millisecond)
	gateway := s.west.gateways[0]
	s.must(s.west.RbacV1().ClusterRoleBindings().Delete(t.Context(), "gateway", metav1.DeleteOptions{}))
	// Watches that are open go on: the API server asks for rights when one begins.
	s.west.server.Process.Kill()
	s.west.server.Wait()
	s.west.server = s.west.serve()
	s.west.await(t)
	eventually(t, 2*time.Minute, "the gateway says what it may not do", func() bool {
		for _, l := range s.kubernetes(t, gateway).Lists {
			if l.Kind == "pods" && l.Failing && strings.Contains(l.LastError, "forbidden") {
				return true
			}
		}
		return false
	})
	k := s.kubernetes(t, gateway)
	if k.AgeMS == 0 || k.Held != "" {
		t.Errorf("it says %+v; want an age, and nothing held: a refusal is no empty list", k)
	}
	if log := s.log(t, gateway.Host); !strings.Contains(log, "give the role of this process the verbs list and watch") {
		t.Error("the log has no remedy")
	}
	if metrics, err := s.Get(gateway.Host, adminAddress, "/metrics"); err != nil || !strings.Contains(string(metrics), `isthmus_kubernetes_failing{list="pods"} 1`) {
		t.Errorf("the metrics do not say it (%v)", err)
	}
	_, binding := role()
	binding.Subjects[0].Kind, binding.Subjects[0].APIGroup, binding.Subjects[0].Namespace = "ServiceAccount", "", "isthmus-system"
	s.west.apply(t, binding)
	took := eventually(t, 3*time.Minute, "the rights are back, and all is followed", func() bool { return s.kubernetes(t, gateway).AgeMS == 0 })
	t.Logf("rights back → followed again: %v", took.Round(10*time.Millisecond))
	flawless(t, load.Stop())
}

// An API server whose etcd is that of an old backup lists none of the pods that run, and lacks one
// service of some.
func TestEtcdOfAnOldBackupTakesNoPodAway(t *testing.T) {
	s := openShop(t, 1, 4, "", 8080)
	gateway := s.west.gateways[0]
	load := s.client.start(hello, 20*time.Millisecond)
	s.west.server.Process.Kill()
	s.west.server.Wait()
	s.west.forget(t, "/registry/pods/demo/", "/registry/endpointslices/demo/", "/registry/services/specs/demo/")
	s.west.server = s.west.serve()
	s.west.await(t)
	eventually(t, 3*time.Minute, "the gateway holds what is missing", func() bool { return s.kubernetes(t, gateway).Held != "" })
	began := time.Now()
	eventually(t, time.Minute, "some rounds of probes are over", func() bool { return time.Since(began) > 15*time.Second })
	k := s.kubernetes(t, gateway)
	t.Logf("held: %+v", k.Lists)
	flawless(t, load.Stop())
	if metrics, err := s.Get(gateway.Host, adminAddress, "/metrics"); err != nil || !strings.Contains(string(metrics), `isthmus_kubernetes_held{list="pods"} 4`) {
		t.Errorf("the metrics do not say that 4 pods are held (%v)", err)
	}
}
