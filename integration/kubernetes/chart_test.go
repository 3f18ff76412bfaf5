package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// elsewhere is the API group of Prometheus's operator, which the API server here has not.
const elsewhere = "monitoring.coreos.com"

// A real API server takes all that the chart renders (the golden files of ../../helm), with
// no field that it does not know.
func TestAnAPIServerTakesWhatTheChartRenders(t *testing.T) {
	c := startCluster(t)
	c.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "isthmus-system"}})
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	disco, err := discovery.NewDiscoveryClientForConfig(c.config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(disco)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	files, err := filepath.Glob("../../helm/testdata/*.golden.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("golden files: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			taken := 0
			for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
				o := unstructured.Unstructured{}
				if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				if len(o.Object) == 0 || o.GroupVersionKind().Group == elsewhere {
					continue
				}
				kind := o.GroupVersionKind()
				m, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
				if err != nil {
					t.Fatal(err)
				}
				var r dynamic.ResourceInterface = client.Resource(m.Resource)
				if m.Scope.Name() == meta.RESTScopeNameNamespace {
					r = client.Resource(m.Resource).Namespace(o.GetNamespace())
				}
				if _, err := r.Create(t.Context(), &o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}); err != nil {
					t.Errorf("%s %s: %v", kind.Kind, o.GetName(), err)
				}
				taken++
			}
			if taken < 10 {
				t.Errorf("%d objects; want what the chart renders", taken)
			}
			t.Logf("%d objects taken", taken)
		})
	}
}

// startHelm starts a cluster, and returns how to run helm on it.
func startHelm(t *testing.T) (*cluster, func(args ...string) (string, error)) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		notRun(t, "HELM names no helm: run `make test-kubernetes`")
	}
	c := startCluster(t)
	home := t.TempDir()
	return c, func(args ...string) (string, error) {
		cmd := exec.Command(binary, append(args, "--namespace", "isthmus-system", "--kubeconfig", c.kubeconfig)...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// helm installs both charts, has them say what to do next, changes one value and takes all
// away again. Without nodes nothing runs.
func TestHelmInstallsTheCharts(t *testing.T) {
	c, run := startHelm(t)
	helm := func(args ...string) string {
		t.Helper()
		out, err := run(args...)
		if err != nil {
			t.Fatalf("helm %q: %v\n%s", args, err, out)
		}
		return out
	}
	helm("install", "isthmus-crds", "../../helm/isthmus-crds", "--create-namespace")
	if out := helm("install", "isthmus", "../../helm/isthmus", "--set", "network=west"); !strings.Contains(out, "isthmus init --network west") {
		t.Errorf("helm install does not name the next command:\n%s", out)
	}
	grace := func() int64 {
		t.Helper()
		d, err := c.AppsV1().Deployments("isthmus-system").Get(t.Context(), "isthmus-gateway", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *d.Spec.Template.Spec.TerminationGracePeriodSeconds
	}
	if got := grace(); got != 100 {
		t.Errorf("a gateway has %d s to stop; want 100", got)
	}
	helm("upgrade", "isthmus", "../../helm/isthmus", "--set", "network=west,gateway.lameDuckSeconds=180")
	if got := grace(); got != 250 {
		t.Errorf("with a longer lame duck it has %d s to stop; want 250", got)
	}
	for _, name := range []string{"isthmus-network-key", "isthmus-ca"} {
		if _, err := c.CoreV1().Secrets("isthmus-system").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if out := helm("upgrade", "isthmus", "../../helm/isthmus", "--set", "network=west"); !strings.Contains(out, "isthmus link") || strings.Contains(out, "isthmus init --network") {
		t.Errorf("with keys there the next command is to link:\n%s", out)
	}
	helm("uninstall", "isthmus")
	if list, err := c.AppsV1().Deployments("isthmus-system").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%d Deployments are left (%v)", len(list.Items), err)
	}
	if list, err := c.CoreV1().Secrets("isthmus-system").List(t.Context(), metav1.ListOptions{FieldSelector: "type=Opaque"}); err != nil || len(list.Items) != 2 {
		t.Errorf("%d Secrets of isthmus init are left (%v); want both", len(list.Items), err)
	}
}

// A client-side apply, which Helm 3 knows alone, merges ports by their number: with UDP beside TCP the Service would have
// UDP alone. The chart refuses that, and each way to QUIC of docs/kubernetes.md keeps both ports.
func TestUpgradeToQUICKeepsTCPPort(t *testing.T) {
	const service, tcp, both = "isthmus-gateway", "hbone/15008/TCP", "hbone/15008/TCP quic-hbone/15008/UDP"
	c, run := startHelm(t)
	helm := func(args ...string) {
		t.Helper()
		if out, err := run(args...); err != nil {
			t.Fatalf("helm %q: %v\n%s", args, err, out)
		}
	}
	want := func(after, want string) {
		t.Helper()
		s, err := c.CoreV1().Services("isthmus-system").Get(t.Context(), service, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range s.Spec.Ports {
			got = append(got, fmt.Sprintf("%s/%d/%s", p.Name, p.Port, p.Protocol))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: the Service has %q; want %q", after, got, want)
		}
	}
	chart := func(verb string, more ...string) []string {
		return append([]string{verb, "isthmus", "../../helm/isthmus", "--set", "network=west"}, more...)
	}
	quic := []string{"--set", "gateway.config.lines.transport=quic"}
	client, server := "--server-side=false", "--server-side=true"

	helm(chart("install", "--create-namespace", client)...)
	out, err := run(chart("upgrade", append(quic, client)...)...)
	if err == nil || !strings.Contains(out, "Service isthmus-gateway lose its TCP port") {
		t.Errorf("an upgrade that loses the TCP port: %v\n%s", err, out)
	}
	want("refused", tcp)
	helm(chart("upgrade", append(quic, "--set", "gateway.service.quic=separate", client)...)...)
	want("with a separate Service", tcp)
	helm(chart("upgrade", client)...)

	helm(chart("upgrade", server)...)
	helm(chart("upgrade", quic...)...)
	want("server-side", both)
	helm(chart("upgrade")...)
	want("server-side, without QUIC again", tcp)
	helm("uninstall", "isthmus")

	helm(chart("install", client)...)
	patch := `[{"op": "add", "path": "/spec/ports/-", "value": {"name": "quic-hbone", "port": 15008, "protocol": "UDP", "targetPort": 15008}}]`
	if _, err := c.CoreV1().Services("isthmus-system").Patch(t.Context(), service, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	helm(chart("upgrade", append(quic, client)...)...)
	helm(chart("upgrade", append(quic, "--set", "gateway.replicas=3", client)...)...)
	want("client-side, behind a patch", both)
	helm(chart("upgrade", client)...)
	want("client-side, without QUIC again", tcp)
	helm("uninstall", "isthmus")

	hostPort := []string{"--set", "gateway.hostPort=31508,gateway.service.type=ClusterIP,gateway.service.quic=none"}
	helm(chart("install", append(hostPort, client)...)...)
	if out, err = run(chart("upgrade", slices.Concat(hostPort, quic, []string{client})...)...); err == nil || !strings.Contains(out, "Deployment isthmus-gateway lose its TCP port") {
		t.Errorf("an upgrade that loses the host port of TCP: %v\n%s", err, out)
	}
	helm(chart("upgrade", append(hostPort, server)...)...)
	helm(chart("upgrade", append(hostPort, quic...)...)...)
	d, err := c.AppsV1().Deployments("isthmus-system").Get(t.Context(), service, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	host := map[corev1.Protocol]int32{}
	for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
		if p.ContainerPort == 15008 {
			host[p.Protocol] = p.HostPort
		}
	}
	if host["TCP"] != 31508 || host["UDP"] != 31508 {
		t.Errorf("host ports: %v; want 31508 of both protocols", host)
	}
	helm("uninstall", "isthmus")

	helm(chart("install", append(quic, client)...)...)
	helm(chart("upgrade", append(quic, "--set", "gateway.lameDuckSeconds=50", client)...)...)
	want("client-side, with QUIC from the start", both)
}
