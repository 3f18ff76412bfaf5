package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// agent plays the scheduler and the kubelets for the pods of isthmus-system on one side: a
// pod is a process in a host of its own (on the host network: in that of its node) whose
// root directory holds what an image holds, one static binary, and the pod's volumes. It
// runs as the user that the pod asks for, and its readiness is what its probe says.
type agent struct {
	*side
	ctx  context.Context
	next int // pod address

	mu   sync.Mutex
	pods map[types.UID]*agentPod
}

type agentPod struct {
	name, address string
	process       *netspace.Process
	told          time.Time // to end
	killed        bool
	ready         bool
	root          string
	filled        time.Time
	restarted     time.Time
	restarts      int
}

const (
	restartDelay = 2 * time.Second // of a container that has ended
	refillDelay  = 2 * time.Second // until a changed ConfigMap is in its volume; a kubelet takes up to a minute
)

// agentGrace is how long after the grace period of a pod its process is killed.
const agentGrace = time.Second

// startAgent plays until the test ends.
func (s *side) startAgent() *agent {
	t := s.world.t
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	a := &agent{side: s, ctx: ctx, next: 60, pods: map[types.UID]*agentPod{}}
	conn, err := s.world.ListenPacket(s.api, net.JoinHostPort(s.address(250), "53"))
	s.world.must(err)
	names := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(a.answer)}
	var work sync.WaitGroup
	work.Go(func() { names.ActivateAndServe() })
	work.Go(func() {
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if err := a.round(); err != nil && ctx.Err() == nil {
				t.Logf("agent of %s: %v", s.network, err)
			}
		}
	})
	t.Cleanup(func() {
		stop()
		names.Shutdown()
		work.Wait()
	})
	return a
}

// round does what is to do now.
func (a *agent) round() error {
	pods := a.CoreV1().Pods("isthmus-system")
	list, err := pods.List(a.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		p := &list.Items[i]
		switch running := a.pod(p.UID); {
		case p.Spec.NodeName == "":
			err = pods.Bind(a.ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: a.nodeFor(p)}}, metav1.CreateOptions{})
		case running == nil && p.DeletionTimestamp == nil:
			err = a.begin(p)
		case running == nil:
			err = a.forget(p)
		case p.DeletionTimestamp != nil:
			err = a.end(p, running)
		default:
			err = a.probe(p, running)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("pod %s: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (a *agent) pod(uid types.UID) *agentPod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[uid]
}

// nodeFor is that which a DaemonSet wants, else one after another.
func (a *agent) nodeFor(p *corev1.Pod) string {
	if f := p.Spec.Affinity; f != nil && f.NodeAffinity != nil && f.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range f.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, m := range term.MatchFields {
				if m.Key == "metadata.name" && len(m.Values) == 1 {
					return m.Values[0]
				}
			}
		}
	}
	a.next++
	return a.nodes[a.next%len(a.nodes)].name
}

// begin starts a pod whose volumes are all there; others wait.
func (a *agent) begin(p *corev1.Pod) error {
	c := p.Spec.Containers[0]
	root := filepath.Join(a.world.Dir, a.network+"-"+p.Name)
	if err := a.furnishPod(p, root); apierrors.IsNotFound(err) {
		return nil // ContainerCreating
	} else if err != nil {
		return err
	}
	user := int64(0)
	if s := p.Spec.SecurityContext; s != nil && s.RunAsUser != nil {
		user = *s.RunAsUser
	}
	running := &agentPod{name: p.Name, root: root, filled: time.Now()}
	host := a.network + "-" + p.Name
	if p.Spec.HostNetwork {
		host = p.Spec.NodeName
		for _, n := range a.nodes {
			if n.name == host {
				running.address = n.address
			}
		}
	} else {
		running.address = a.address(a.next)
		a.next++
		if err := a.world.Host(segment, host, running.address); err != nil {
			return err
		}
		if err := a.routes(host); err != nil {
			return err
		}
	}
	name := strings.TrimPrefix(c.Image[strings.LastIndex(c.Image, "/")+1:], "isthmus-")
	name, _, _ = strings.Cut(name, ":")
	binary, err := os.ReadFile(filepath.Join(a.world.bin, name))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, name), binary, 0o755); err != nil {
		return err
	}
	running.process = &netspace.Process{Host: host, Log: filepath.Join(a.world.Dir, a.network+"-"+p.Name+".log"), Env: a.environment(p, running.address),
		Args: append([]string{"chroot", fmt.Sprintf("--userspec=%d:%d", user, user), root, "/" + name}, c.Args...)}
	if err := a.world.Start(running.process, func() error { return nil }); err != nil {
		return err
	}
	a.mu.Lock()
	a.pods[p.UID] = running
	a.mu.Unlock()
	return a.say(p, running)
}

// environment is what the pod's container is given, beside the address of the API server.
func (a *agent) environment(p *corev1.Pod, address string) []string {
	out := []string{"KUBERNETES_SERVICE_HOST=" + a.address(250), "KUBERNETES_SERVICE_PORT=6443", "HOME=/"}
	for _, e := range p.Spec.Containers[0].Env {
		value := e.Value
		if e.ValueFrom != nil && e.ValueFrom.FieldRef != nil {
			value = map[string]string{"metadata.name": p.Name, "metadata.namespace": p.Namespace, "spec.nodeName": p.Spec.NodeName, "status.podIP": address, "metadata.uid": string(p.UID)}[e.ValueFrom.FieldRef.FieldPath]
		} else if e.ValueFrom != nil && e.ValueFrom.ResourceFieldRef != nil {
			value = fmt.Sprint(p.Spec.Containers[0].Resources.Limits.Memory().Value())
		}
		out = append(out, e.Name+"="+value)
	}
	return out
}

// furnishPod makes the pod's root directory: its volumes, and where names are asked for.
func (a *agent) furnishPod(p *corev1.Pod, root string) error {
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "etc", "resolv.conf"), []byte("nameserver "+a.address(250)+"\nsearch isthmus-system.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"), 0o644); err != nil {
		return err
	}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		dir := filepath.Join(root, m.MountPath)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if !m.ReadOnly {
			if err := os.Chmod(dir, 0o777); err != nil {
				return err
			}
		}
	}
	return a.fill(p, root, true)
}

// fill writes what is new in a pod's volumes; tokens once.
func (a *agent) fill(p *corev1.Pod, root string, tokens bool) error {
	group := 0
	if s := p.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		group = int(*s.FSGroup)
	}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		v := p.Spec.Volumes[slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		files, mode, err := a.volume(p, &v, tokens)
		if err != nil {
			return err
		}
		for name, b := range files {
			file := filepath.Join(root, m.MountPath, name)
			if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, b) {
				continue
			}
			if err := errors.Join(os.WriteFile(file+".next", b, 0o600), os.Chown(file+".next", 0, group), os.Chmod(file+".next", os.FileMode(mode)), os.Rename(file+".next", file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// volume is the files of a volume, and their mode.
func (a *agent) volume(p *corev1.Pod, v *corev1.Volume, tokens bool) (files map[string][]byte, mode int32, err error) {
	files, mode = map[string][]byte{}, 0o644
	take := func(optional *bool, data map[string][]byte, items []corev1.KeyToPath, err error) error {
		if apierrors.IsNotFound(err) && optional != nil && *optional {
			return nil
		}
		for _, i := range items {
			files[i.Path] = data[i.Key]
		}
		if len(items) == 0 {
			maps.Copy(files, data)
		}
		return err
	}
	configMap := func(name string, optional *bool, items []corev1.KeyToPath) error {
		m, err := a.CoreV1().ConfigMaps(p.Namespace).Get(a.ctx, name, metav1.GetOptions{})
		data := map[string][]byte{}
		for k, text := range m.Data {
			data[k] = []byte(text)
		}
		return take(optional, data, items, err)
	}
	switch {
	case v.ConfigMap != nil:
		err = configMap(v.ConfigMap.Name, v.ConfigMap.Optional, v.ConfigMap.Items)
	case v.Secret != nil:
		if v.Secret.DefaultMode != nil {
			mode = *v.Secret.DefaultMode
		}
		s, e := a.CoreV1().Secrets(p.Namespace).Get(a.ctx, v.Secret.SecretName, metav1.GetOptions{})
		err = take(v.Secret.Optional, s.Data, v.Secret.Items, e)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources { // the later one of two files of one name counts
			switch {
			case s.ConfigMap != nil:
				err = errors.Join(err, configMap(s.ConfigMap.Name, s.ConfigMap.Optional, s.ConfigMap.Items))
			case s.DownwardAPI != nil:
				files["namespace"] = []byte(p.Namespace)
			case s.ServiceAccountToken != nil && tokens:
				r := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{ExpirationSeconds: s.ServiceAccountToken.ExpirationSeconds,
					BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}}}
				if s.ServiceAccountToken.Audience != "" {
					r.Spec.Audiences = []string{s.ServiceAccountToken.Audience}
				}
				r, e := a.CoreV1().ServiceAccounts(p.Namespace).CreateToken(a.ctx, p.Spec.ServiceAccountName, r, metav1.CreateOptions{})
				if err = errors.Join(err, e); e == nil {
					files[s.ServiceAccountToken.Path] = []byte(r.Status.Token)
				}
			}
		}
	}
	return files, mode, err
}

// say tells the API server of a pod that runs.
func (a *agent) say(p *corev1.Pod, running *agentPod) error {
	status := map[bool]string{true: "True", false: "False"}[running.ready]
	patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":%q},{"type":"ContainersReady","status":%[2]q}]}}`, running.address, status)
	_, err := a.CoreV1().Pods(p.Namespace).Patch(a.ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// probe asks a pod whether it is ready.
func (a *agent) probe(p *corev1.Pod, running *agentPod) error {
	select {
	case <-running.process.Ended():
		if time.Since(running.restarted) < restartDelay {
			return nil
		}
		running.restarts, running.restarted, running.ready = running.restarts+1, time.Now(), false
		return errors.Join(a.say(p, running), a.world.Start(running.process, func() error { return nil }))
	default:
	}
	if time.Since(running.filled) > refillDelay {
		running.filled = time.Now()
		if err := a.fill(p, running.root, false); err != nil && !apierrors.IsNotFound(err) { // what is there stays
			return err
		}
	}
	get := p.Spec.Containers[0].ReadinessProbe.HTTPGet
	_, err := a.world.Get(running.process.Host, net.JoinHostPort(running.address, get.Port.String()), get.Path)
	if ready := err == nil; ready != running.ready {
		running.ready = ready
		return a.say(p, running)
	}
	return nil
}

// end tells a deleted pod to end, and takes it away once it has; one that outstays its
// grace period is killed.
func (a *agent) end(p *corev1.Pod, running *agentPod) error {
	if running.told.IsZero() {
		running.told = time.Now()
		running.process.Signal(syscall.SIGTERM)
	}
	select {
	case <-running.process.Ended():
		return a.forget(p)
	default:
	}
	if grace := time.Duration(*p.Spec.TerminationGracePeriodSeconds) * time.Second; time.Since(running.told) > grace+agentGrace && !running.killed {
		running.killed = true
		a.world.t.Errorf("%s was still running %v after it was told to end", p.Name, grace)
		running.process.Signal(syscall.SIGKILL)
	}
	return nil
}

func (a *agent) forget(p *corev1.Pod) error {
	none := int64(0)
	err := a.CoreV1().Pods(p.Namespace).Delete(a.ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// answer answers for names of Services, with the pods behind them: there is no kube-proxy
// that would lead from a cluster IP to these.
func (a *agent) answer(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg).SetReply(q)
	defer func() { w.WriteMsg(r) }()
	labels := strings.Split(strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(q.Question[0].Name), "."), ".cluster.local"), ".")
	if len(labels) != 3 || labels[2] != "svc" {
		r.Rcode = dns.RcodeNameError
		return
	}
	slicesOf, err := a.DiscoveryV1().EndpointSlices(labels[1]).List(a.ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + labels[0]})
	if err != nil || len(slicesOf.Items) == 0 {
		r.Rcode = dns.RcodeNameError
		return
	}
	for _, s := range slicesOf.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready || q.Question[0].Qtype != dns.TypeA || s.AddressType != "IPv4" {
				continue
			}
			for _, ip := range e.Addresses {
				r.Answer = append(r.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(ip)})
			}
		}
	}
}

// calm fails the test if a container has restarted.
func (a *agent) calm(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pods {
		if p.restarts > 0 {
			t.Errorf("%s of %s has restarted %d times, want none", p.name, a.network, p.restarts)
		}
	}
}
