package kubernetes

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/drill/demoapp"
)

// demoPod is a pod that runs: its object at the API server, an address on its node, and the
// demonstration application as a process. The methods do what a kubelet does.
type demoPod struct {
	name, uid, address string
	side               *side
	node               *node
	client             bool
	in                 io.WriteCloser
	replies            *json.Decoder
	cmd                *exec.Cmd
	resetting          net.Listener // in the place of the application
}

// run starts a pod of a service on a node: it has its address, and is not ready. An app
// without ports is a client.
func (s *side) run(t *testing.T, app, name string, n *node, ports ...int) *demoPod {
	t.Helper()
	p := s.place(name, n)
	p.client = len(ports) == 0
	spec := corev1.PodSpec{NodeName: n.name, ServiceAccountName: app, Containers: []corev1.Container{{Name: "app", Image: "demo"}}}
	for _, port := range ports {
		spec.Containers[0].Ports = append(spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: int32(port)})
	}
	made, err := s.CoreV1().Pods("demo").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}}, Spec: spec}, metav1.CreateOptions{})
	s.world.must(err)
	p.uid = string(made.UID)
	if !p.client {
		p.serve(t, ports...)
	}
	p.say(t, corev1.ConditionFalse)
	return p
}

// place gives a pod an address on a node.
func (s *side) place(name string, n *node) *demoPod {
	p := &demoPod{name: name, address: s.address(s.next), side: s, node: n}
	s.next++
	s.pods[name] = p
	s.world.must(s.world.IP(n.name, "addr", "add", p.address+"/16", "dev", "eth0"))
	return p
}

// serve starts the demonstration application, and waits until it listens.
func (p *demoPod) serve(t *testing.T, ports ...int) {
	t.Helper()
	w := p.side.world
	args := []string{"app", "--control", "--name", p.name}
	for _, port := range ports {
		args = append(args, "--listen", fmt.Sprintf("%s:%d", p.address, port))
	}
	p.cmd = exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	var err error
	p.in, err = p.cmd.StdinPipe() // its end is the application's
	w.must(err)
	out, err := p.cmd.StdoutPipe()
	w.must(err)
	p.replies = json.NewDecoder(bufio.NewReader(out))
	w.must(w.In(p.node.name, p.cmd.Start))
	t.Cleanup(p.kill)
	p.await(t, "ready")
}

// say tells the API server how the pod is.
func (p *demoPod) say(t *testing.T, ready corev1.ConditionStatus) {
	t.Helper()
	p.side.kubelet(t, "demo", p.name, p.address, ready)
}

// order makes the application fall ill or heal: refuse, hang, silent or heal.
func (p *demoPod) order(t *testing.T, do string, port uint16) {
	t.Helper()
	b, _ := json.Marshal(demoapp.Order{Do: do, Port: port})
	_, err := p.in.Write(append(b, '\n'))
	p.side.world.must(err)
	p.await(t, do)
}

// fall is order with one more illness: reset accepts, and resets each connection.
func (p *demoPod) fall(t *testing.T, ill string, port uint16) {
	t.Helper()
	if ill != "reset" {
		p.order(t, ill, port)
		return
	}
	p.order(t, "refuse", port)
	l, err := p.side.world.Listen(p.node.name, fmt.Sprintf("%s:%d", p.address, port))
	p.side.world.must(err)
	p.resetting = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.(*net.TCPConn).SetLinger(0)
			c.Close()
		}
	}()
}

// heal ends whatever fall began.
func (p *demoPod) heal(t *testing.T, port uint16) {
	t.Helper()
	if p.resetting != nil {
		p.resetting.Close()
		p.resetting = nil
	}
	p.order(t, "heal", port)
}

func (p *demoPod) await(t *testing.T, do string) {
	t.Helper()
	var r demoapp.Reply
	if err := p.replies.Decode(&r); err != nil || r.Error != "" || r.Do != do {
		t.Fatalf("application %s answers %+v (%v), want %q", p.name, r, err, do)
	}
}

func (p *demoPod) kill() {
	if p.cmd != nil {
		p.in.Close()
		p.cmd.Wait()
		p.cmd = nil
	}
}

// delete deletes the pod as a person or a rollout does, and ends it when grace is over.
// It returns when the pod is marked.
func (p *demoPod) delete(t *testing.T, grace time.Duration) (over <-chan struct{}) {
	t.Helper()
	seconds := int64(30)
	pods := p.side.CoreV1().Pods("demo")
	p.side.world.must(pods.Delete(t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &seconds}))
	done := make(chan struct{})
	time.AfterFunc(grace, func() {
		defer close(done)
		p.kill()
		none := int64(0)
		if err := pods.Delete(t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: metav1.NewUIDPreconditions(p.uid)}); err != nil {
			t.Error(err)
		}
	})
	delete(p.side.pods, p.name)
	return done
}

// expose makes a service of the pods with its name.
func (s *side) expose(t *testing.T, name string, labels map[string]string, ports ...int) {
	t.Helper()
	var list []corev1.ServicePort
	for _, p := range ports {
		list = append(list, corev1.ServicePort{Name: fmt.Sprintf("p%d", p), Port: int32(p)})
	}
	s.apply(t, service(name, labels, list...))
}
