package kubernetes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// apps are a service of three pods on each network, and a pod that calls the other one's. Nothing in
// them knows of the mesh; only their namespace has its label.
const apps = `apiVersion: v1
kind: ServiceAccount
metadata: {name: caller, namespace: demo}
---
apiVersion: v1
kind: Pod
metadata: {name: caller, namespace: demo}
spec:
  serviceAccountName: caller
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "localhost/app:1", args: [serve]}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: echo, namespace: demo}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo-NETWORK, namespace: demo}
spec:
  replicas: 3
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      serviceAccountName: echo
      terminationGracePeriodSeconds: 1
      containers:
        - name: app
          image: localhost/app:1
          args: [serve]
          ports: [{containerPort: 8080}, {containerPort: 7070}]
          readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
          livenessProbe: {httpGet: {path: /, port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: echo-NETWORK, namespace: demo, labels: {istio.io/global: "true"}}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 8080}, {name: tcp, port: 7070}]
`

// other is the other network.
func other(network string) string {
	return map[string]string{"east": "west", "west": "east"}[network]
}

// echo is what caller on a network calls: pods of the other one.
func echo(network string) string {
	return "http://echo-" + other(network) + ".demo.mesh.internal:8080/"
}

// captured tests what unchanged pods do. Pods are joined to their nodes by ptp on east and by a bridge on west.
func (w *realWorld) captured(t *testing.T) {
	w.deployApps(t)
	for _, part := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"Identities", w.identities},
		{"Names", w.resolved},
		{"Load", w.steady},
		{"ProcessKilled", w.processKilled},
		{"ProcessStopped", w.processStopped},
		{"PortClosed", w.portClosed},
		{"PodReplaced", w.podReplaced},
		{"PodDeletedByForce", w.podDeletedByForce},
		{"GatewaysUpdated", w.gatewaysUpdated},
		{"NodeProxyUpdated", w.nodeProxyUpdated},
		{"NodeProxyKilled", w.nodeProxyKilled}, // from here on containers of ours have been started again
		{"NothingEscaped", w.nothingEscaped},
		{"NodeLost", w.nodeLost},
	} {
		t.Run(part.name, part.run)
	}
}

// deployApps deploys apps on all networks and waits until each caller reaches the other network.
func (w *realWorld) deployApps(t *testing.T) {
	t.Helper()
	for network := range w.nodes {
		w.must(os.WriteFile(filepath.Join(w.operator.dir, network+"-apps.yaml"), []byte(strings.ReplaceAll(apps, "NETWORK", network)), 0o600))
		w.does(t, "kubectl --context "+network+" apply -f "+network+"-apps.yaml")
	}
	for network := range w.nodes {
		w.wait(t, network, "--namespace demo rollout status deployment/echo-"+network, 2*time.Minute)
		w.wait(t, network, "--namespace demo wait --for condition=Ready pod/caller", 2*time.Minute)
	}
	for network := range w.nodes {
		w.answered(t, network, echo(network), time.Minute)
	}
}

// answered waits until caller on a network is answered, and returns how long that took.
func (w *realWorld) answered(t *testing.T, network, url string, limit time.Duration) {
	t.Helper()
	var last outcomes
	took := eventually(t, limit, "caller on "+network+" is answered by "+url, func() bool {
		last = w.load(t, network, "caller", url, 10, 100*time.Millisecond).end()
		return len(last.failed()) == 0
	})
	t.Logf("%s calls %s after %.1f s: %v", network, url, took.Seconds(), last)
}

// accessLog are the lines of connections in the logs of a network's node proxies, since a time.
func (n *realNode) accessLog(t *testing.T, since time.Time, direction string) (out []map[string]any) {
	t.Helper()
	logs, _ := filepath.Glob(filepath.Join(n.dir, "log", "pods", system+"_isthmus-nodeproxy-*", "*", "*.log"))
	for _, l := range logs {
		text, err := os.ReadFile(l)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			stamp, rest, _ := strings.Cut(line, " ")
			if at, err := time.Parse(time.RFC3339Nano, stamp); err != nil || at.Before(since) {
				continue
			}
			var m map[string]any
			if _, rest, ok := strings.Cut(rest, " F "); ok && json.Unmarshal([]byte(rest), &m) == nil && m["message"] == "connection" && m["direction"] == direction {
				out = append(out, m)
			}
		}
	}
	return out
}

// identities: the node proxies at both ends name both.
func (w *realWorld) identities(t *testing.T) {
	for network, n := range w.nodes {
		since := time.Now()
		w.answered(t, network, echo(network), time.Minute)
		for _, end := range []struct {
			node           *realNode
			direction      string
			identity, peer string
		}{
			{n, "outbound", "spiffe://" + network + ".local/ns/demo/sa/caller", "spiffe://" + other(network) + ".local/ns/demo/sa/echo"},
			{w.nodes[other(network)], "inbound", "spiffe://" + other(network) + ".local/ns/demo/sa/echo", "spiffe://" + network + ".local/ns/demo/sa/caller"},
		} {
			eventually(t, 10*time.Second, fmt.Sprintf("the %s access log names %s and %s", end.direction, end.identity, end.peer), func() bool {
				time.Sleep(20 * time.Millisecond)
				for _, m := range end.node.accessLog(t, since, end.direction) {
					if m["identity"] == end.identity && m["peer"] == end.peer && m["result"] == "ok" {
						return true
					}
				}
				return false
			})
		}
	}
}

// resolved: names that are not of the mesh are answered as without it.
func (w *realWorld) resolved(t *testing.T) {
	for network := range w.nodes {
		for _, url := range []string{"http://echo-" + network + ":8080/", "http://echo-" + network + ".demo.svc.cluster.local:8080/", "http://echo-" + network + ".demo.svc.cluster.local.:8080/"} {
			if o := w.load(t, network, "caller", url, 10, 200*time.Millisecond).end(); len(o.failed()) > 0 {
				t.Errorf("%s calls its own %s: %v", network, url, o)
			}
		}
		o := w.load(t, network, "caller", "-limit 300ms http://"+strings.TrimSuffix(outside, ".")+":8080/", 10, 100*time.Millisecond).end()
		if !strings.Contains(o[0].Error, outsideAddress) && !strings.Contains(o[0].Error, "deadline exceeded") {
			t.Errorf("%s calls a name of the internet: %v, want that it is looked for at %s", network, o, outsideAddress)
		}
	}
}

// rate is how many connections a second pods begin here.
const rate = 100

// steady: without a fault none fails. Known: in pods without IPv6 one of some thousand is sent to the IPv6
// address of the service, when the answer with the other one is late, and finds no way there.
func (w *realWorld) steady(t *testing.T) {
	loads := map[string]*loading{}
	for network := range w.nodes {
		loads[network] = w.load(t, network, "caller", echo(network), rate, 10*time.Second)
	}
	for network, l := range loads {
		o := l.end()
		t.Logf("from %s: %v", network, o)
		if f := o.failed(); len(f) > 2 || len(f) > len(f.where(func(x outcome) bool { return strings.Contains(x.Error, "network is unreachable") })) {
			t.Errorf("from %s: %v fail without a fault", network, f)
		}
	}
}

// victim is a pod of echo on a network, and its process.
func (w *realWorld) victim(t *testing.T, network string) (corev1.Pod, int) {
	t.Helper()
	n := w.nodes[network]
	p := n.list(t, "demo", "echo-")[0]
	return p, n.process(t, p)
}

// during makes the load of a network while something happens, 3 s after it has begun, and returns what
// was begun since then.
func (w *realWorld) during(t *testing.T, network string, duration time.Duration, happens func()) (after outcomes) {
	t.Helper()
	l := w.load(t, network, "caller", echo(network), rate, duration)
	time.Sleep(3 * time.Second)
	began := time.Now()
	happens()
	o := l.end()
	after = o.where(func(x outcome) bool { return x.over().After(began) })
	t.Logf("from %s: %v", network, o)
	if f := o.failed(); len(f) > 0 {
		t.Logf("from %s: failed from %.0f to %.0f ms after it", network, f[0].over().Sub(began).Seconds()*1000, f[len(f)-1].over().Sub(began).Seconds()*1000)
	}
	return after
}

// processKilled: who was being answered by the process loses that; nobody else notices.
func (w *realWorld) processKilled(t *testing.T) {
	for network := range w.nodes {
		after := w.during(t, network, 8*time.Second, func() {
			p, pid := w.victim(t, other(network))
			t.Logf("killed in %s", p.Name)
			w.must(syscall.Kill(pid, syscall.SIGKILL))
		})
		if f := after.failed(); len(f) > 2 {
			t.Errorf("from %s: %v", network, f)
		}
		w.settled(t, other(network))
	}
}

// processStopped: a process that is stopped accepts as long as its queue has room, and says nothing.
func (w *realWorld) processStopped(t *testing.T) {
	for network := range w.nodes {
		var began time.Time
		after := w.during(t, network, 15*time.Second, func() {
			p, pid := w.victim(t, other(network))
			t.Logf("stopped in %s", p.Name)
			began = time.Now()
			w.must(syscall.Kill(pid, syscall.SIGSTOP))
			t.Cleanup(func() { syscall.Kill(pid, syscall.SIGCONT) })
			time.AfterFunc(8*time.Second, func() { syscall.Kill(pid, syscall.SIGCONT) })
		})
		slow := after.where(func(x outcome) bool { return x.took() > 500*time.Millisecond })
		if len(slow) > 0 {
			t.Logf("from %s: %d of %d took more than 500 ms; the last of them was begun %.1f s after it", network, len(slow), len(after), slow[len(slow)-1].At.Sub(began).Seconds())
		}
		w.settled(t, other(network))
	}
}

// portClosed: a process goes on, and closes its port for a while that is too short for its readiness probe to say so. Whom
// it was answering, and who was in its queue, loses that; nobody else is sent there until the port is open again, and soon
// somebody is then.
func (w *realWorld) portClosed(t *testing.T) {
	const closedFor = 2 * time.Second
	for network := range w.nodes {
		pod, closed := map[string]bool{}, time.Time{}
		after := w.during(t, network, 10*time.Second, func() {
			p, pid := w.victim(t, other(network))
			t.Logf("closed in %s", p.Name)
			pod[p.Name], closed = true, time.Now()
			w.must(syscall.Kill(pid, syscall.SIGUSR1))
			time.Sleep(closedFor)
			w.must(syscall.Kill(pid, syscall.SIGUSR2))
		})
		if f := after.failed(); len(f) > 2 {
			t.Errorf("from %s: %v", network, f)
		}
		if f := after.where(func(x outcome) bool {
			return x.Error != "" && x.At.After(closed.Add(100*time.Millisecond))
		}); len(f) > 0 {
			t.Errorf("from %s, begun more than 100 ms after the port was closed: %v", network, f)
		}
		opened := closed.Add(closedFor)
		back := after.where(func(x outcome) bool { return x.of(pod) && x.At.After(opened) })
		if len(back) == 0 || back[0].At.Sub(opened) > 2*time.Second {
			t.Errorf("from %s: the pod is called again after %v, want within 2 s", network, back)
		} else {
			t.Logf("from %s: the pod is called again %.0f ms after its port is open", network, back[0].At.Sub(opened).Seconds()*1000)
		}
		w.settled(t, other(network))
	}
}

// settled waits until all pods of echo are Ready.
func (w *realWorld) settled(t *testing.T, network string) {
	t.Helper()
	w.wait(t, network, "--namespace demo rollout status deployment/echo-"+network, time.Minute)
}

// podReplaced: each new pod calls from its beginning, and those of the other network call new pods. Who is being
// answered by a pod when that ends, which this application does at once, loses that.
func (w *realWorld) podReplaced(t *testing.T) {
	for network := range w.nodes {
		after := w.during(t, network, 20*time.Second, func() {
			w.does(t, "kubectl --context "+other(network)+" --namespace demo rollout restart deployment/echo-"+other(network))
			w.settled(t, other(network))
		})
		if f := after.failed(); len(f) > 6 {
			t.Errorf("from %s, while all pods of %s are replaced: %v", network, other(network), f)
		}
	}
	for network, n := range w.nodes {
		var late []time.Duration
		for i := range 5 {
			name := fmt.Sprintf("newborn-%d", i)
			spec := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"demo"},"spec":{"restartPolicy":"Never","serviceAccountName":"caller","containers":[{"name":"app","image":"localhost/app:1","args":["load","-rate","50","-for","4s","-limit","1s",%q]}]}}`, name, echo(network))
			w.must(os.WriteFile(filepath.Join(w.operator.dir, "newborn.yaml"), []byte(spec), 0o600))
			w.does(t, "kubectl --context "+network+" apply -f newborn.yaml")
			w.wait(t, network, "--namespace demo wait --for jsonpath={.status.phase}=Succeeded pod/"+name, time.Minute)
			o := parse(t, w.does(t, "kubectl --context "+network+" --namespace demo logs "+name))
			w.must(n.CoreV1().Pods("demo").Delete(t.Context(), name, metav1.DeleteOptions{}))
			ok := o.where(func(x outcome) bool { return x.Error == "" })
			if len(ok) == 0 {
				t.Fatalf("%s on %s is never answered: %v", name, network, o)
			}
			late = append(late, ok[0].over().Sub(o[0].At).Round(time.Millisecond))
			if f := o.where(func(x outcome) bool { return x.Error != "" && x.At.After(ok[0].over()) }); len(f) > 0 {
				t.Errorf("%s on %s, once it was answered: %v", name, network, f)
			}
		}
		t.Logf("new pods on %s are answered for the first time after %v", network, late)
		for _, d := range late {
			if d > time.Second {
				t.Errorf("a new pod on %s is answered %v after its start, want within 1 s", network, d)
			}
		}
	}
}

// podDeletedByForce: a pod that is gone from the API server at once, while its process still ends.
func (w *realWorld) podDeletedByForce(t *testing.T) {
	for network := range w.nodes {
		after := w.during(t, network, 10*time.Second, func() {
			p, _ := w.victim(t, other(network))
			w.does(t, "kubectl --context "+other(network)+" --namespace demo delete pod --force --grace-period=0 "+p.Name)
		})
		if f := after.failed(); len(f) > 2 {
			t.Errorf("from %s: %v", network, f)
		}
		w.settled(t, other(network))
	}
}

// nodeProxyUpdated rolls the node proxies of each network under traffic. The next node proxy starts before the old one
// stops, so no connection fails.
func (w *realWorld) nodeProxyUpdated(t *testing.T) {
	w.rolls(t, "daemonset/isthmus-nodeproxy", "isthmus-nodeproxy-")
}

// gatewaysUpdated rolls the gateways of each network under traffic.
func (w *realWorld) gatewaysUpdated(t *testing.T) {
	w.rolls(t, "deployment/isthmus-gateway", "isthmus-gateway-")
}

// rolls restarts a workload of ours in each network, while the callers of both networks call each other. No connection may
// fail, until the old pods are gone.
func (w *realWorld) rolls(t *testing.T, what, prefix string) {
	for network, n := range w.nodes {
		old := map[types.UID]bool{}
		for _, p := range n.list(t, system, prefix) {
			old[p.UID] = true
		}
		began := time.Now()
		loads := map[string]*loading{}
		for from := range w.nodes {
			loads[from] = w.load(t, from, "caller", echo(from), rate, rollFor)
		}
		time.Sleep(3 * time.Second) // of traffic before the rollout
		w.does(t, "kubectl --context "+network+" --namespace isthmus-system rollout restart "+what)
		w.wait(t, network, "--namespace isthmus-system rollout status "+what, time.Minute)
		eventually(t, time.Minute, "the old pods of "+what+" on "+network+" are gone", func() bool {
			time.Sleep(100 * time.Millisecond)
			return !slices.ContainsFunc(n.list(t, system, prefix), func(p corev1.Pod) bool { return old[p.UID] })
		})
		took := time.Since(began)
		if took > rollFor {
			t.Errorf("%s on %s: the rollout took %v, longer than the traffic (%v)", what, network, took.Round(time.Second), rollFor)
		}
		for from, l := range loads {
			o := l.end()
			t.Logf("%s of %s replaced within %.0f s; from %s: %v", what, network, took.Seconds(), from, o)
			if f := o.failed(); len(f) > 0 {
				t.Errorf("from %s, while %s of %s is replaced: %v", from, what, network, f)
			}
		}
	}
}

// rollFor is how long the traffic of rolls lasts. A rollout takes 20 to 30 s with stopTimes.
const rollFor = 45 * time.Second

// nodeProxyKilled: while it is away connections to virtual addresses are refused, and go on as soon as it is
// back.
func (w *realWorld) nodeProxyKilled(t *testing.T) {
	for network, n := range w.nodes {
		vip := strings.Fields(w.does(t, "kubectl --context "+network+" --namespace demo get serviceimport echo-"+other(network)+" --output jsonpath={.spec.ips[*]}"))[0]
		url := "http://" + vip + ":8080/"
		w.answered(t, network, url, time.Minute)
		l := w.load(t, network, "caller", "-limit 2s "+url, rate, 20*time.Second)
		time.Sleep(3 * time.Second)
		p := n.list(t, system, "isthmus-nodeproxy-")[0]
		killed := time.Now()
		w.must(syscall.Kill(n.process(t, p), syscall.SIGKILL))
		var ready time.Time
		eventually(t, time.Minute, "the node proxy is ready again", func() bool {
			time.Sleep(10 * time.Millisecond)
			return n.healthy(p.Status.PodIP) && !time.Now().Before(killed.Add(200*time.Millisecond))
		})
		ready = time.Now()
		o := l.end()
		t.Logf("from %s: %v; the node proxy was ready again after %.1f s", network, o, ready.Sub(killed).Seconds())
		f := o.failed()
		if len(f) == 0 {
			t.Fatal("no connection failed while the node proxy was away")
		}
		if refused := f.where(func(x outcome) bool {
			return strings.Contains(x.Error, "refused") || strings.Contains(x.Error, "reset") || strings.Contains(x.Error, "EOF")
		}); len(refused) < len(f) {
			t.Errorf("from %s: %v: want that all that fail are refused or reset", network, f)
		}
		t.Logf("from %s: connections fail from %.0f ms after it was killed until %.0f ms after it was ready again", network, f[0].over().Sub(killed).Seconds()*1000, f[len(f)-1].over().Sub(ready).Seconds()*1000)
		if late := f[len(f)-1].over().Sub(ready); late > time.Second {
			t.Errorf("from %s: a connection fails %v after the node proxy was ready again, want none after 1 s", network, late)
		}
	}
}

// healthy reports whether a process of ours says that it is ready.
func (n *realNode) healthy(address string) bool {
	ok := false
	n.place.enter(func() error {
		client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dial}}
		r, err := client.Get("http://" + address + ":15020/healthz/ready")
		if err == nil {
			r.Body.Close()
			ok = r.StatusCode == http.StatusOK
		}
		return nil
	})
	return ok
}

// nothingEscaped: whatever happened, no pod has sent anything to a virtual address by its node.
func (w *realWorld) nothingEscaped(t *testing.T) {
	for network, n := range w.nodes {
		cmd := exec.Command("nft", "list", "chain", "ip", "node", "escaped")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		w.must(n.place.enter(cmd.Start))
		w.must(cmd.Wait())
		if !strings.Contains(out.String(), "packets 0 ") {
			t.Errorf("packets to virtual addresses have left pods of %s: %s", network, out.String())
		}
	}
}
