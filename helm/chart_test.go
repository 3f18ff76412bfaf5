package helm

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "rewrite values.schema.json, and, with HELM, the golden files")

// cases are the sets of values that are rendered: testdata/<name>.values.yaml becomes
// testdata/<name>.golden.yaml.
func cases(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("sets of values: %v, %v; want some", files, err)
	}
	for _, f := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(f), ".values.yaml"))
	}
	return names
}

// helm runs the binary that make chart builds.
func helm(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Skip("NOT RUN: HELM names no helm: run `make chart`")
	}
	var stderr bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("helm %s: %w: %s%s", strings.Join(args, " "), err, stderr.String(), b)
	}
	return string(b), err
}

func render(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return helm(t, append([]string{"template", "isthmus", "isthmus", "--namespace", "isthmus-system"}, args...)...)
}

func TestChartRendersAsTheGoldenFilesSay(t *testing.T) {
	for _, name := range cases(t) {
		t.Run(name, func(t *testing.T) {
			got, err := render(t, "--values", "testdata/"+name+".values.yaml")
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".golden.yaml"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				a, b := difference(got, string(want))
				t.Errorf("helm renders\n%s\nwhere %s has\n%s\nto rewrite it: make chart UPDATE=-update", a, golden, b)
			}
		})
	}
}

// difference returns what follows where a and b part.
func difference(a, b string) (string, string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range x {
		if i >= len(y) || x[i] != y[i] {
			return strings.Join(x[i:min(i+5, len(x))], "\n"), strings.Join(y[min(i, len(y)):min(i+5, len(y))], "\n")
		}
	}
	return "", strings.Join(y[len(x):], "\n")
}

func TestHelmLintsTheCharts(t *testing.T) {
	for _, name := range cases(t) {
		if out, err := helm(t, "lint", "--strict", "isthmus", "--values", "testdata/"+name+".values.yaml"); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	if out, err := helm(t, "lint", "--strict", "isthmus-crds"); err != nil {
		t.Errorf("isthmus-crds: %v\n%s", err, out)
	}
}

// A value that is mistyped must not be taken for one that was left out.
func TestHelmRefusesWhatIsNoValue(t *testing.T) {
	for set, says := range map[string]string{
		"network=west,gateway.replica=3":                       "replica",
		"network=west,nodeproxy.enabled=true":                  "nodeproxy",
		"network=west,gateway.service.externalTrafficPolicy=x": "externalTrafficPolicy",
		"network=west,gateway.lameDuckSeconds=-1":              "lameDuckSeconds",
		"network=West":                        "network",
		"gateway.replicas=3":                  "network",
		"network=west,gateway.hostPort=31508": "gateway.service.type=ClusterIP",
		"network=west,gateway.hostPort=31508,gateway.service.type=ClusterIP,gateway.service.externalIPs[0]=192.0.2.1": "gateway.service.externalIPs",
		"network=west,gateway.minAvailable=2":                                                                                                "gateway.minAvailable",
		"network=west,gateway.config.timeouts.lameDuck=60s":                                                                                  "gateway.lameDuckSeconds",
		"network=west,gateway.config.timeouts.drain=10m":                                                                                     "gateway.drainSeconds",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.timeouts.drain=10m":                                                            "nodeProxy.drainSeconds",
		"network=west,nodeProxy.enabled=true,nodeProxy.hostNetwork=true":                                                                     "networkPolicy.nodeCIDRs",
		"network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=vip":                                                                    "/nodeProxy/capture/scope",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.capture.scope=vips":                                                            "nodeProxy.capture.scope",
		"network=west,nodeProxy.capture.scope=vips":                                                                                          "nodeProxy.enabled is false",
		"network=west,nodeProxy.cni.enabled=true":                                                                                            "nodeProxy.cni.enabled is true, and nodeProxy.enabled is false",
		"network=west,nodeProxy.cni.enabled=true,nodeProxy.cni.failurePolicy=Fail":                                                           "nodeProxy.cni.enabled is true, and nodeProxy.enabled is false",
		"network=west,nodeProxy.cni.failurePolicy=Fail":                                                                                      "nodeProxy.cni.failurePolicy is Fail, and nodeProxy.enabled is false",
		"network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=all,nodeProxy.config.capture.proc=/proc":                                "nodeProxy.config.capture.proc is /proc",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.capture.proc=proc":                                                             "/nodeProxy/config/capture/proc",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.capture.ranges={240.240.0.0}":                                                  "/nodeProxy/config/capture/ranges",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.capture.originalSource=yes":                                                    "/nodeProxy/config/capture/originalSource",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.capture.namespaces[0].workload=x":                                              "/nodeProxy/config/capture/namespaces",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.capture.source=x":                                                              "/nodeProxy/config/capture",
		"network=west,nodeProxy.enabled=true,nodeProxy.cni.enabled=true":                                                                     "nodeProxy.cni.enabled is true, and nothing is captured",
		"network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=all,nodeProxy.cni.enabled=true,nodeProxy.config.capture.cniSocket=/x/y": "nodeProxy.cni.socketDir",
		"network=west,nodeProxy.enabled=true,nodeProxy.cni.failurePolicy=Maybe":                                                              "failurePolicy",
		"network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=vips,nodeProxy.cni.failurePolicy=Fail":                                  "nodeProxy.cni.enabled is false",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.retry.hedge=maybe":                                                             "/nodeProxy/config/retry/hedge",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.retry.hegde=true":                                                              "hegde",
		"network=west,gateway.config.federaton.health=true":                                                                                  "federaton",
		"network=west,controller.config.timeouts.x=5s":                                                                                       "/controller/config",
		"network=west,nodeProxy.enabled=true,nodeProxy.cni.timeout=1h":                                                                       "/nodeProxy/cni/timeout",
		"network=west,nodeProxy.enabled=true,nodeProxy.cni.confDir=etc/cni":                                                                  "/nodeProxy/cni/confDir",
		"network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=vips,nodeProxy.cni.enabled=true,nodeProxy.cni.failurePolicy=Fail,nodeProxy.config.identity.address=istiod.istio-system.svc:15012": "add istio-system to nodeProxy.cni.excludeNamespaces (kube-system)",
		"network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=vips,nodeProxy.cni.enabled=true,nodeProxy.cni.failurePolicy=Fail,gateway.config.identity.address=ca.pki.svc.cluster.local:443":    "gateway.config.identity.address is ca.pki.svc.cluster.local:443: a CA in namespace pki",
		"network=west,gateway.config.admin.address=127.0.0.1:99999":                                                     "/gateway/config/admin/address",
		"network=west,gateway.config.admin.address=10.0.0.1:15000":                                                      "/gateway/config/admin/address",
		"network=west,controller.config.admin.address=127.0.0.1":                                                        "/controller/config/admin/address",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.admin.address=localhost:15000":                            "/nodeProxy/config/admin/address",
		"network=west,gateway.service.quic=both":                                                                        "/gateway/service/quic",
		"network=west,gateway.config.lines.transport=QUIC":                                                              "/gateway/config/lines/transport",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.lines.transport=udp":                                      "/nodeProxy/config/lines/transport",
		"network=west,gateway.config.lines.transports.east=udp":                                                         "/gateway/config/lines/transports/east",
		"network=west,nodeProxy.enabled=true,nodeProxy.config.lines.transports=auto":                                    "/nodeProxy/config/lines/transports",
		"network=west,gateway.config.lines.transport=quic,gateway.config.reusePort=true":                                "gateway.config.reusePort",
		"network=west,gateway.config.lines.transport=auto,gateway.service.type=NodePort":                                "gateway.service.nodePort is 0",
		"network=west,gateway.config.lines.transport=quic,gateway.service.quic=separate,gateway.service.type=ClusterIP": "gateway.service.quic is separate",
		"network=west,log.level=trace":                                                                                  "log.level",
		"network=west,trustDomain=West.Local":                                                                           "trustDomain",
		"network=west,gateway.service.nodePort=80":                                                                      "nodePort",
		"network=west,gateway.service.externalIPs={192.0.2}":                                                            "externalIPs",
		"network=west,gateway.service.loadBalancerSourceRanges={198.51.100.0}":                                          "loadBalancerSourceRanges",
		"network=west,networkPolicy.nodeCIDRs={10.0.0.0/33}":                                                            "nodeCIDRs",
		"network=west,gateway.resources.limits.memory=1GB":                                                              "memory",
		"network=west,image.registry=https://registry.example":                                                          "registry",
		"network=west,objects.ca=Isthmus_CA":                                                                            "objects/ca",
		"network=west,nodeProxy.stateDir=/var/../etc":                                                                   "stateDir",
		"network=west,controller.startupTaint=a b":                                                                      "startupTaint",
		"network=west,gateway.config.timeouts.dial=-1s":                                                                 "timeouts/dial",
		"network=west,controller.config.trustDomain=West":                                                               "trustDomain",
		"network=west,nodeProxy.config.socks[0].listen=127.0.0.1:15080":                                                 "workload",
		"network=west,nodeProxy.config.socks[0].listen=127.0.0.1:15080,nodeProxy.config.socks[0].workload=":             "workload",
		"network=west,nodeProxy.config.socks[0].listen=:15080,nodeProxy.config.socks[0].workload=u":                     "listen",
	} {
		out, err := render(t, "--set", set)
		if err == nil {
			t.Errorf("--set %s is taken:\n%.300s", set, out)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("--set %s: %v; want it to name %q", set, err, says)
		}
	}
}

// A CA that no pod has to wait for is as good as one outside of the cluster.
func TestACAThatNoPodWaitsForIsTakenWithFail(t *testing.T) {
	const fail = "network=west,nodeProxy.enabled=true,nodeProxy.capture.scope=vips,nodeProxy.cni.enabled=true,nodeProxy.cni.failurePolicy=Fail,nodeProxy.config.identity.address="
	for _, set := range []string{"istiod.istio-system.svc:15012,nodeProxy.cni.excludeNamespaces={kube-system,istio-system}", "ca.example.com:443", "isthmus-controller.isthmus-system.svc:15012", "192.0.2.1:15012"} {
		if _, err := render(t, "--set", fail+set); err != nil {
			t.Error(err)
		}
	}
}

// Whoever has no pod start that is not captured is told which pods never wait, and who has to be among them.
func TestTheNotesOfFailNameWhoNeverWaits(t *testing.T) {
	for policy, want := range map[string]bool{"Ignore": false, "Fail": true} {
		out, err := helm(t, "install", "isthmus", "isthmus", "--namespace", "isthmus-system", "--dry-run=client", "--values", "testdata/cni.values.yaml", "--set", "nodeProxy.cni.failurePolicy="+policy)
		if err != nil {
			t.Fatal(err)
		}
		_, notes, _ := strings.Cut(out, "\nNOTES:")
		if got := strings.Contains(notes, "but those of kube-system, isthmus-system.") && strings.Contains(notes, "nodeProxy.cni.excludeNamespaces"); got != want || notes == "" {
			t.Errorf("%s: notes are %q; want them to say it: %v", policy, notes, want)
		}
	}
}

// What helm prints of a value that no pattern takes is that pattern alone: it has an example.
func TestPatternsHaveAnExample(t *testing.T) {
	for set, example := range map[string]string{
		"network=West": "such as west",
		"network=west,networkPolicy.nodeCIDRs={10.0.0.0/33}":        "such as 10.0.0.0/16",
		"network=west,gateway.config.admin.address=127.0.0.1:99999": "such as 127.0.0.1:15000",
		"network=west,nodeProxy.stateDir=/var/../etc":               "such as /var/lib/isthmus",
		"network=west,nodeProxy.cni.binDir=/opt/..":                 "such as /opt/cni/bin",
		"network=west,nodeProxy.cni.socketDir=/../run":              "such as /run/isthmus",
		"network=west,nodeProxy.cni.timeout=1h":                     "such as 5s",
		"network=west,gateway.config.timeouts.dial=0s":              "such as 10s",
		"network=west,nodeProxy.config.outbound[0].to=hello":        "such as hello.demo.svc.cluster.local:80",
		"network=west,gateway.resources.limits.memory=1GB":          "such as 64Mi",
		"network=west,nodeProxy.config.capture.proc=proc":           "such as /host/proc",
	} {
		if _, err := render(t, "--set", set); err == nil || !strings.Contains(err.Error(), example) {
			t.Errorf("--set %s: %v; want it to say %q", set, err, example)
		}
	}
	for _, dir := range []string{"/var/lib/.isthmus", "/var/..lib", "/var/lib/", "/a/./b", "/"} {
		if _, err := render(t, "--set", "network=west,nodeProxy.stateDir="+dir); err != nil {
			t.Error(err)
		}
	}
}

// object is one document of what helm renders.
type object struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Spec     map[string]any
	Rules    []struct {
		APIGroups       []string `yaml:"apiGroups"`
		Resources       []string `yaml:"resources"`
		Verbs           []string `yaml:"verbs"`
		ResourceNames   []string `yaml:"resourceNames"`
		NonResourceURLs []string `yaml:"nonResourceURLs"`
	}
	all map[string]any
}

// rendered returns the objects of a golden file.
func rendered(t *testing.T, name string) (out []object) {
	t.Helper()
	return objectsOf(t, "testdata/"+name+".golden.yaml")
}

// objectsOf returns the objects of a file.
func objectsOf(t *testing.T, path string) (out []object) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var n yaml.Node
		if err := d.Decode(&n); err == io.EOF {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		var o object
		if err := n.Decode(&o); err != nil && !strings.Contains(err.Error(), "cannot unmarshal") {
			t.Fatal(err)
		}
		if err := n.Decode(&o.all); err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" {
			out = append(out, o)
		}
	}
}
