//go:build linux

package capture

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inNetB is one more pod, a client of net-b's own services.
const inNetB = "10.71.2.21"

// withinNetB adds a captured client in net-b, and has nodeproxy-b started anew with more in its configuration.
func (w *world) withinNetB(t *testing.T, more string) {
	t.Helper()
	must(t, w.Host("all", "caller", inNetB))
	must(t, w.IP("caller", "addr add fd71::10:71:2:21/64 dev eth0 nodad"))
	w.write(t, "mesh.yaml", mesh+"  - {uid: caller, namespace: demo, serviceAccount: caller, network: net-b, node: node-b, addresses: ["+inNetB+"]}\n")
	w.restartB(t, more, "hello-1", "hello-2", "caller")
}

func (w *world) restartB(t *testing.T, more string, pods ...string) {
	t.Helper()
	must(t, w.nodes["node-b"].Stop(syscall.SIGTERM, 5*time.Second))
	w.write(t, "node-b.yaml", strings.Replace(w.node("b", admin, pods...), "  scope: vips\n", "  scope: vips\n"+more, 1))
	w.start(t, "node-b")
	w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
}

// sees has an error unless all of some calls are answered by an application that sees that address as its client's.
func (w *world) sees(pod, to, want string) error {
	for range 8 {
		text, err := w.call(pod, to)
		if err != nil {
			return err
		}
		if _, got, _ := strings.Cut(text, " sees "); got != want {
			return fmt.Errorf("a call of %s: %s, want %s", pod, text, want)
		}
	}
	return nil
}

// ownSeen has an error unless applications see their own address.
func (w *world) ownSeen(pod, to string) error {
	for range 8 {
		text, err := w.call(pod, to)
		if err != nil {
			return err
		}
		if name, got, _ := strings.Cut(text, " sees "); got != addresses[name] {
			return fmt.Errorf("a call of %s: %s, want its own address", pod, text)
		}
	}
	return nil
}

// Across networks an application sees the gateway, and within its own the pod that calls.
func TestWhomAnApplicationSees(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.withinNetB(t, "")
	w.until(t, 10*time.Second, "caller", hello+":80", answered)
	for pod, want := range map[string]string{"shop-1": addresses["gateway"], "caller": inNetB} {
		if err := w.sees(pod, hello+":80", want); err != nil {
			t.Error(err)
		}
	}
	// In plain text it is as ever, at the same time, from the gateway's host as well.
	c, err := w.Dial("shop-1", hello+":80")
	must(t, err)
	defer c.Close()
	for _, from := range []string{"gateway", "caller", "node-b"} {
		want := addresses[from]
		if from == "caller" {
			want = inNetB
		}
		if text, err := w.call(from, addresses["hello-1"]+":8080"); err != nil || text != "hello-1 sees "+want {
			t.Errorf("a plain call of %s: %q, %v", from, text, err)
		}
	}
	w.serve(t, "gateway")
	if text, err := w.call("hello-1", addresses["gateway"]+":8080"); err != nil || text != "gateway sees "+addresses["hello-1"] {
		t.Errorf("a plain call of hello-1 to the gateway's host: %q, %v", text, err)
	}
}

// As with one address, so with the other family's.
func TestWhomAnApplicationSeesByIPv6(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	v6 := func(a string) string { return "fd71::" + strings.ReplaceAll(a, ".", ":") }
	text := mesh
	for _, pod := range []string{"hello-1", "hello-2"} {
		text = strings.Replace(text, "addresses: ["+addresses[pod]+"]", "addresses: [\""+v6(addresses[pod])+"\"]", 1)
	}
	w.write(t, "mesh.yaml", text)
	w.until(t, 10*time.Second, "shop-1", hello+":80", func(text string, err error) bool {
		return err == nil && strings.HasSuffix(text, " sees "+v6(addresses["gateway"]))
	})
	if err := w.sees("shop-1", hello+":80", v6(addresses["gateway"])); err != nil {
		t.Error(err)
	}
}

// routing is what there is of ours in a pod that has to do with sources.
func (w *world) routing(t testing.TB, pod string) string {
	t.Helper()
	var all strings.Builder
	must(t, w.In(pod, func() error {
		for _, args := range []string{"-4 rule", "-6 rule", "-4 route show table all", "-6 route show table all"} {
			out, err := exec.Command("ip", strings.Fields(args)...).Output()
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "1337") || strings.Contains(line, "0x111") {
					all.WriteString(line)
				}
			}
		}
		return nil
	}))
	return all.String()
}

// What is asked for is what happens, and what is impossible leaves the pod's own address, or the pod alone.
func TestSourcesThatAreNotWantedOrImpossible(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.sees("shop-1", hello+":80", addresses["gateway"]); err != nil {
		t.Error(err)
	}
	w.restartB(t, "  originalSource: false\n", "hello-1", "hello-2")
	if err := w.ownSeen("shop-1", hello+":80"); err != nil {
		t.Error(err)
	}
	// A rule of somebody else takes what applications answer out of the pod.
	for _, pod := range []string{"hello-1", "hello-2"} {
		must(t, w.IP(pod, "rule add fwmark 0x111/0xfff pref 10 lookup main"))
	}
	w.restartB(t, "  originalSource: auto\n", "hello-1", "hello-2")
	if err := w.ownSeen("shop-1", hello+":80"); err != nil {
		t.Error(err)
	}
	if n := w.said(t, "node-b", "sees the pod's own address"); n != 2 {
		t.Errorf("the log says %d times that a pod's own address is seen, want once for each pod", n)
	}
	must(t, w.IP("hello-2", "rule del fwmark 0x111/0xfff pref 10 lookup main"))
	must(t, w.nodes["node-b"].Stop(syscall.SIGTERM, 5*time.Second))
	w.write(t, "node-b.yaml", strings.Replace(w.node("b", admin, "hello-1", "hello-2"), "  scope: vips\n", "  scope: vips\n  originalSource: true\n", 1))
	w.start(t, "node-b")
	w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
	for range 8 {
		if text, err := w.call("shop-1", hello+":80"); err != nil || text != "hello-2 sees "+addresses["gateway"] {
			t.Errorf("a call where hello-1 cannot be captured: %q, %v", text, err)
		}
	}
	for end := time.Now().Add(10 * time.Second); w.said(t, "node-b", "capture.originalSource is true") == 0; time.Sleep(10 * time.Millisecond) { // it takes as long to find out as others wait for it
		if time.Now().After(end) {
			t.Fatal("the log does not say why hello-1 is not captured")
		}
	}
}

// said counts lines of a node proxy's log.
func (w *world) said(t testing.TB, host, what string) int {
	t.Helper()
	text, err := os.ReadFile(w.file(host + ".log"))
	must(t, err)
	return strings.Count(string(text), what)
}

// One node proxy after the other is in the pod, and an open connection goes on; the rules leave with the pod,
// once its last connection has ended.
func TestSourcesOverAnUpgradeAndAPodThatLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	open, err := w.Dial("shop-1", hello+":80")
	must(t, err)
	defer open.Close()
	name := hear(t, open)
	say := func(when string) {
		t.Helper()
		open.SetDeadline(time.Now().Add(3 * time.Second))
		b := make([]byte, 4)
		_, err := io.WriteString(open, "ping")
		if err == nil {
			_, err = io.ReadFull(open, b)
		}
		if err != nil {
			t.Errorf("%s an open connection: %q, %v", when, b, err)
		}
	}
	once := w.routing(t, name)
	if strings.Count(once, "lookup 1337") != 1 {
		t.Fatalf("rules in %s:\n%s", name, once)
	}
	w.write(t, "node-b-2.yaml", w.node("b", secondary, "hello-1", "hello-2"))
	next := w.process("node-b", "node-b-2")
	must(t, w.Start(next, w.Ready("node-b", secondary)))
	say("with two node proxies")
	must(t, next.Stop(syscall.SIGTERM, 5*time.Second))
	say("when the second has stopped")
	if got := w.routing(t, name); got != once {
		t.Errorf("rules in %s after another node proxy was there:\n%s\nwant\n%s", name, got, once)
	}
	if err := w.sees("shop-1", hello+":80", addresses["gateway"]); err != nil {
		t.Error(err)
	}
	// It leaves the mesh with the connection open.
	var rest strings.Builder
	for line := range strings.Lines(mesh) {
		if !strings.Contains(line, "uid: "+name+",") {
			rest.WriteString(line)
		}
	}
	w.write(t, "mesh.yaml", rest.String())
	for end := time.Now().Add(10 * time.Second); w.said(t, "node-b", "captured no more") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the pod does not leave")
		}
	}
	say("while it drains")
	for end := time.Now().Add(10 * time.Second); w.routing(t, name) != ""; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left in %s:\n%s", name, w.routing(t, name))
		}
	}
	w.write(t, "mesh.yaml", mesh)
	// A client that was refused in between remembers it for 10 s (health.DefaultHintTTL).
	w.until(t, 20*time.Second, "shop-1", hello+":80", func(text string, err error) bool {
		return err == nil && text == name+" sees "+addresses["gateway"]
	})
}

// Rules that somebody in the pod has taken out cost one connection a moment, and the application nothing: they are
// set again.
func TestSourcesThatSomebodyTakesOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.nodes["node-b"].Stop(syscall.SIGTERM, 5*time.Second))
	w.write(t, "node-b.yaml", strings.Replace(w.node("b", admin, "hello-1", "hello-2"), "drain: 2s", "drain: 2s, app: 500ms", 1))
	w.start(t, "node-b")
	w.until(t, 10*time.Second, "shop-1", hello+":80", answered)
	for _, pod := range []string{"hello-1", "hello-2"} {
		must(t, w.IP(pod, "rule del pref 32763"))
	}
	for range 20 {
		if _, err := w.call("shop-1", hello+":80"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.sees("shop-1", hello+":80", addresses["gateway"]); err != nil {
		t.Error(err)
	}
	if n := w.said(t, "node-b", "are set again"); n != 2 {
		t.Errorf("the log says %d times that rules are set again, want 2", n)
	}
	if n := w.said(t, "node-b", "ejected"); n > 0 {
		t.Errorf("applications were ejected for it: %d lines", n)
	}
}

// hear is the name of the pod that greets.
func hear(t testing.TB, c net.Conn) string {
	t.Helper()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	var line []byte
	for b := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; line = append(line, b[0]) {
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatalf("%q, %v", line, err)
		}
	}
	name, _, _ := strings.Cut(string(line), " ")
	return name
}

// Ends and resets of applications arrive as what they are, and who does not listen refuses.
func TestEndsOfApplicationsThatSeeTheClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	text := mesh
	for i, port := range []string{"8081", "8082"} {
		name := []string{"resets", "nobody"}[i]
		vip := []string{"240.240.0.11", "240.240.0.12"}[i]
		text = strings.Replace(text, "workloads:\n", "  - {name: "+name+", namespace: demo, global: true, vips: [\""+vip+"\"], ports: [{name: tcp, port: 80, targetPort: "+port+"}]}\nworkloads:\n", 1)
		text = strings.ReplaceAll(text, "[hello.demo.svc.cluster.local", "["+name+".demo.svc.cluster.local, hello.demo.svc.cluster.local")
	}
	for _, pod := range []string{"hello-1", "hello-2"} {
		l, err := w.Listen(pod, ":8081")
		must(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { // after the first byte
					io.ReadFull(c, make([]byte, 1))
					c.(*net.TCPConn).SetLinger(0)
					c.Close()
				}()
			}
		}()
	}
	w.write(t, "mesh.yaml", text)
	w.until(t, 10*time.Second, "shop-1", "240.240.0.11:80", func(_ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) })
	began := time.Now()
	if text, err := w.call("shop-1", "240.240.0.12:80"); err == nil || text != "" || time.Since(began) > 2*time.Second {
		t.Errorf("a call where nobody listens: %q, %v after %v", text, err, time.Since(began))
	}
	if err := w.sees("shop-1", hello+":80", addresses["gateway"]); err != nil { // with half-close
		t.Error(err)
	}
}
