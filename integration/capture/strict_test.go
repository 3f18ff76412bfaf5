//go:build linux

package capture

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	strict = `policies:
  - {apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: mtls, namespace: demo}, spec: {mtls: {mode: STRICT}}}
`
	// notFrom forbids an outsider.
	notFrom = `policies:
  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: not-from, namespace: demo}, spec: {action: DENY, rules: [{from: [{source: {ipBlocks: ["10.71.9.1/32"]}}]}]}}
`
	// onlyHello allows an identity, which nobody has in plain text.
	onlyHello = `policies:
  - {apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: only-hello, namespace: demo}, spec: {action: ALLOW, rules: [{from: [{source: {principals: ["cluster.local/ns/demo/sa/shop"]}}]}]}}
`
)

// policed is mesh with a policy that may deny plain text, and denies none of the hosts here. Without one the kernel delivers
// what others open to a pod.
var policed = strings.Replace(notFrom, "10.71.9.1/32", "192.0.2.1/32", 1) + mesh

// police puts policed into force, and returns when what others open to pods of node-a comes to the node proxy.
func (w *world) police(t *testing.T) {
	t.Helper()
	w.write(t, "mesh.yaml", policed)
	for _, pod := range []string{"shop-1", "shop-2"} {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if out, err := w.ruleset(pod); err == nil && strings.Contains(out, "15006") {
				break
			} else if time.Now().After(end) {
				t.Fatalf("%s has a policy, and no rules for what others open: %v\n%s", pod, err, out)
			}
		}
	}
}

// What comes in plain text has no identity: policies are asked all the same, also of what is open already, and the
// node's own processes, as the kubelet with its probes, are never refused.
func TestPoliciesHoldForPlainText(t *testing.T) {
	t.Parallel()
	w := newWorldAll(t)
	app := addresses["shop-1"] + ":8080"
	open, err := w.Dial("gateway", app)
	must(t, err)
	defer open.Close()
	hear(t, open)
	probe, err := w.Dial("node-a", app) // that is open while policies allow it
	must(t, err)
	defer probe.Close()
	hear(t, probe)
	w.write(t, "mesh.yaml", strict+mesh)
	open.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("under STRICT an open connection ends with %v, want a reset", err)
	}
	for _, from := range []string{"gateway", "hello-1", "node-b"} {
		for _, to := range []string{app, v6(addresses["shop-1"]) + ":8080"} {
			if err := w.ends(from, to); err != nil {
				t.Errorf("under STRICT: %v", err)
			}
		}
	}
	w.line(t, "node-a", map[string]any{"direction": "inbound", "workload": "shop-1", "plain": true, "result": "denied", "policy": "PeerAuthentication demo/mtls"})
	echoes := func(when string) {
		t.Helper()
		probe.SetDeadline(time.Now().Add(5 * time.Second))
		_, err := probe.Write([]byte("x"))
		if err == nil {
			_, err = probe.Read(make([]byte, 1))
		}
		if err != nil {
			t.Errorf("%s, a connection that the node has had open since before: %v", when, err)
		}
	}
	echoes("under STRICT")
	for _, to := range []string{app, v6(addresses["shop-1"]) + ":8080"} {
		if _, err := w.call("node-a", to); err != nil {
			t.Errorf("under STRICT a probe of the node at %s: %v", to, err)
		}
	}
	for _, to := range []string{addresses["shop-2"] + ":8080", local + ":80", hello + ":80"} {
		if _, err := w.call("shop-1", to); err != nil {
			t.Errorf("under STRICT a call by the mesh to %s: %v", to, err)
		}
	}
	for policies, wants := range map[string]map[string]bool{
		notFrom:   {"gateway": false, "hello-1": true, "node-a": true},
		onlyHello: {"gateway": false, "hello-1": false, "node-a": true},
		strings.Replace(strict, "mtls: {mode: STRICT}", "mtls: {mode: PERMISSIVE}", 1):                                                                              {"gateway": true, "hello-1": true, "node-a": true},
		strings.Replace(strict, "mtls: {mode: STRICT}", "selector: {matchLabels: {app: shop}}, mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: PERMISSIVE}}", 1): {"gateway": true},
		strings.Replace(strict, "mtls: {mode: STRICT}", "selector: {matchLabels: {app: shop}}, mtls: {mode: STRICT}, portLevelMtls: {8081: {mode: PERMISSIVE}}", 1): {"gateway": false, "node-a": true},
	} {
		w.write(t, "mesh.yaml", policies+strings.Replace(mesh, "{uid: shop-1,", "{uid: shop-1, labels: {app: shop},", 1))
		for from, want := range wants {
			w.until(t, 10*time.Second, from, app, func(_ string, err error) bool { return (err == nil) == want })
		}
	}
	echoes("after all changes")
}

// A node proxy that drains still asks policies about what is open.
func TestPoliciesHoldForPlainTextThatIsDrained(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 5*time.Second))
	w.write(t, "node-a.yaml", strings.Replace(w.config("node-a", admin, "all"), "drain: 2s", "drain: 60s", 1))
	w.start(t, "node-a")
	w.police(t)
	app := addresses["shop-1"] + ":8080"
	open, err := w.Dial("gateway", app)
	must(t, err)
	defer open.Close()
	hear(t, open)
	w.nodes["node-a"].Signal(syscall.SIGTERM)
	w.until(t, 5*time.Second, "gateway", app, refused)
	w.write(t, "mesh.yaml", strict+mesh)
	open.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("under STRICT a connection that is drained ends with %v, want a reset", err)
	}
	w.line(t, "node-a", map[string]any{"direction": "inbound", "workload": "shop-1", "plain": true, "result": "denied", "policy": "PeerAuthentication demo/mtls"})
}

// The address of a node is not the node: what it masquerades for others is theirs.
func TestWhatANodeMasqueradesIsNotItsOwn(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	app := addresses["shop-1"] + ":8080"
	must(t, w.In("node-a", func() error { return command("sysctl", "-qw", "net.ipv4.ip_forward=1") }))
	_, err := w.Nft("node-a", "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; add rule ip nat post ip saddr "+addresses["gateway"]+" masquerade")
	must(t, err)
	must(t, w.IP("gateway", "route add "+addresses["shop-1"]+"/32 via "+addresses["node-a"]))
	if text, err := w.call("gateway", app); err != nil || text != "shop-1 sees "+addresses["node-a"] {
		t.Fatalf("masqueraded: %q, %v", text, err)
	}
	open, err := w.Dial("gateway", app)
	must(t, err)
	defer open.Close()
	hear(t, open)
	w.write(t, "mesh.yaml", strict+mesh)
	w.until(t, 10*time.Second, "hello-1", app, func(_ string, err error) bool { return err != nil })
	if err := w.ends("gateway", app); err != nil {
		t.Errorf("under STRICT what the node masquerades: %v", err)
	}
	open.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("under STRICT an open connection that the node masquerades ends with %v, want a reset", err)
	}
	if _, err := w.call("node-a", app); err != nil {
		t.Errorf("under STRICT a probe of the node: %v", err)
	}
}

// With virtual addresses alone STRICT does not keep plain text out, and the status says so.
func TestPlainTextPastSTRICTIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(t, "mesh.yaml", strict+mesh)
	says := func(want bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			b, err := w.Get("node-a", admin, "/status")
			must(t, err)
			if strings.Contains(string(b), "pod shop-1: PeerAuthentication demo/mtls is STRICT") == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the status says so: %t, want %t: %s", !want, want, b)
			}
		}
	}
	says(true)
	if _, err := w.call("gateway", addresses["shop-1"]+":8080"); err != nil {
		t.Errorf("plain text with scope vips: %v", err)
	}
	w.scope(t, "node-a", "all")
	says(false)
}

// Without a node proxy nothing but the node's own processes comes in past policies, and first connections to outsiders wait
// for the next node proxy.
func TestWithoutANodeProxyNothingPasses(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	w.serve(t, "gateway")
	w.police(t)
	must(t, w.nodes["node-a"].Stop(syscall.SIGKILL, 5*time.Second))
	for from, to := range map[string]string{"gateway": addresses["shop-1"] + ":8080", "shop-2": hello + ":80", "node-b": v6(addresses["shop-1"]) + ":8080"} {
		if text, err := w.call(from, to); !refused(text, err) {
			t.Errorf("without a node proxy, %s to %s: %q, %v", from, to, text, err)
		}
	}
	for _, to := range []string{addresses["shop-1"] + ":8080", v6(addresses["shop-1"]) + ":8080"} {
		if _, err := w.call("node-a", to); err != nil {
			t.Errorf("without a node proxy a probe of the node at %s: %v", to, err)
		}
	}
	var waiting sync.WaitGroup
	for from, to := range map[string]string{"shop-1": addresses["gateway"] + ":8080", "shop-2": v6(addresses["gateway"]) + ":8080"} {
		waiting.Go(func() {
			d := net.Dialer{Timeout: 30 * time.Second}
			err := w.In(from, func() error {
				c, err := d.Dial("tcp", to)
				if err == nil {
					c.Close()
				}
				return err
			})
			if err != nil {
				t.Errorf("%s to %s, while the node proxy starts: %v", from, to, err)
			}
		})
	}
	w.start(t, "node-a")
	waiting.Wait()
	for from, to := range map[string]string{"shop-1": addresses["gateway"] + ":8080", "gateway": addresses["shop-1"] + ":8080"} {
		if _, err := w.call(from, to); err != nil {
			t.Errorf("with the next node proxy, %s to %s: %v", from, to, err)
		}
	}
}

// One scope follows the other by a restart, or by two node proxies that overlap: what is open goes on, nothing that is
// begun fails, and release takes all of it out.
func TestFromOneScopeToAnother(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorld(t)
	w.serve(t, "gateway")
	outsider, app := addresses["gateway"]+":8080", addresses["shop-1"]+":8080"
	var list []net.Conn
	open := func(from, to string) {
		t.Helper()
		c, err := w.Dial(from, to)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		hear(t, c)
		list = append(list, c)
	}
	say := func(when string) {
		t.Helper()
		for i, c := range list {
			c.SetDeadline(time.Now().Add(3 * time.Second))
			_, err := c.Write([]byte("x"))
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err != nil {
				t.Errorf("%s: connection %d: %v", when, i, err)
			}
		}
	}
	open("shop-1", outsider)
	open("gateway", app)
	current := w.nodes["node-a"]
	for i, scope := range []string{"all", "vips", "all"} {
		next := fmt.Sprintf("127.0.0.1:%d", 16010+i)
		name := fmt.Sprint("node-a-", i)
		w.write(t, name+".yaml", strings.Replace(w.config("node-a", next, scope), "drain: 2s", "drain: 30s", 1))
		p := w.process("node-a", name)
		must(t, w.Start(p, w.Ready("node-a", next)))
		say("with two node proxies, the next of scope " + scope)
		for range 20 {
			for from, to := range map[string]string{"shop-1": outsider, "gateway": app} {
				if _, err := w.call(from, to); err != nil {
					t.Errorf("with two node proxies, the next of scope %s: %s to %s: %v", scope, from, to, err)
				}
			}
		}
		current.Signal(syscall.SIGTERM)
		w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
		say("while the last one drains, with scope " + scope)
		current = p
		open("shop-1", outsider)
		open("gateway", app)
	}
	if out, err := w.ruleset("shop-1"); err != nil || !strings.Contains(out, "direct") {
		t.Errorf("with scope all the kernel has no set of direct destinations: %v\n%s", err, out)
	}
	// One that releases overlaps as well.
	w.write(t, "node-a-release.yaml", strings.Replace(w.config("node-a", secondary, "release"), "drain: 2s", "drain: 30s", 1))
	last := w.process("node-a", "node-a-release")
	must(t, w.Start(last, w.Ready("node-a", secondary)))
	current.Signal(syscall.SIGTERM)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) { // until the older one does not set its own again
		out, err := w.ruleset("shop-1")
		must(t, err)
		if text, err := w.call("shop-1", outsider); !strings.Contains(out, ":15006") && err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("not released: %q, %v\n%s", text, err, out)
		}
	}
	say("while rules are taken out")
	for _, c := range list {
		c.Close()
	}
	must(t, current.Stop(syscall.SIGTERM, 35*time.Second))
	must(t, last.Stop(syscall.SIGTERM, 35*time.Second))
	for from, to := range map[string]string{"shop-1": outsider, "gateway": app} {
		if _, err := w.call(from, to); err != nil {
			t.Errorf("released, %s to %s: %v", from, to, err)
		}
	}
	out, err := w.ruleset("shop-1")
	if err != nil || strings.Contains(out, "isthmus") {
		t.Errorf("rules are left: %v\n%s", err, out)
	}
}

// Connections at rest are drained at SIGTERM: those that end meanwhile have an end, those that do not are reset.
func TestWhatIsPassedOnIsDrained(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	w.serve(t, "gateway")
	must(t, w.nodes["node-a"].Stop(syscall.SIGTERM, 5*time.Second))
	w.write(t, "node-a.yaml", strings.Replace(w.config("node-a", admin, "all"), "drain: 2s", "drain: 5s", 1))
	w.start(t, "node-a")
	w.police(t)
	var list []net.Conn
	for range 400 {
		c, err := w.Dial("gateway", addresses["shop-1"]+":8080")
		must(t, err)
		defer c.Close()
		hear(t, c)
		list = append(list, c)
	}
	outsider, err := w.Dial("shop-1", addresses["gateway"]+":8080")
	must(t, err)
	defer outsider.Close()
	hear(t, outsider)
	w.nodes["node-a"].Signal(syscall.SIGTERM)
	w.until(t, 5*time.Second, "gateway", addresses["shop-1"]+":8080", refused)
	if _, err := w.call("shop-1", addresses["gateway"]+":8080"); err != nil { // the kernel's
		t.Errorf("a call to an outsider while the node proxy drains: %v", err)
	}
	for _, c := range list[:300] { // with data, and an end in order
		c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		must(t, c.(interface{ CloseWrite() error }).CloseWrite())
		b := make([]byte, 5)
		if n, err := c.Read(b); err != nil || string(b[:n]) != "last" {
			t.Fatalf("while it drains: %q, %v", b[:n], err)
		}
		if n, err := c.Read(b); n > 0 || err == nil || errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("while it drains: %q, %v, want an end", b[:n], err)
		}
	}
	for _, c := range list[300:] {
		c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("after the drain: %v, want a reset", err)
		}
	}
	select {
	case <-w.nodes["node-a"].Ended():
	case <-time.After(5 * time.Second):
		t.Error("the node proxy goes on")
	}
	outsider.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := outsider.Write([]byte("last")); err != nil {
		t.Error(err)
	}
	if n, err := outsider.Read(make([]byte, 5)); n != 4 {
		t.Errorf("a connection to an outsider after the node proxy has ended: %d bytes, %v", n, err)
	}
}

// A pod whose address is one of capture.ranges does not keep policies from pods that are captured.
func TestPoliciesHoldWhereRangesOverlap(t *testing.T) {
	needsNft(t)
	t.Parallel()
	w := newWorldAll(t)
	app := addresses["shop-1"] + ":8080"
	w.until(t, 5*time.Second, "gateway", app, answered)
	overlapping := mesh + "  - {uid: odd-1, namespace: demo, serviceAccount: odd, network: net-a, node: node-z, addresses: [240.240.0.77]}\n"
	w.write(t, "mesh.yaml", strict+overlapping)
	w.until(t, 10*time.Second, "gateway", app, func(_ string, err error) bool { return err != nil })
	w.write(t, "mesh.yaml", overlapping)
	w.until(t, 10*time.Second, "gateway", app, answered)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if out, err := w.ruleset("shop-1"); err == nil && !strings.Contains(out, "15006") {
			break
		} else if time.Now().After(end) {
			t.Fatalf("without a policy the pod has rules for what others open: %v\n%s", err, out)
		}
	}
}
