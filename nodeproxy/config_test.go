package nodeproxy_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

const smallest = "node: east-1\nnetwork: east\ndiscovery: {file: mesh.yaml}\nidentity: {dir: ca}\n"

// aMesh is what the configurations of these tests find as mesh.yaml in the directory
// that they are read in.
const aMesh = `networks:
  - {name: east, nodes: [east-1]}
  - {name: west, nodes: [west-9]}
  - {name: north, nodes: [north-7]}
gateways:
  - {name: gw-1, network: west, address: "127.20.2.1:15008", serviceAccount: isthmus-system/gateway-west}
  - {name: gw-7, network: north, address: "127.1.2.3:15008", serviceAccount: isthmus-system/gateway-north}
services:
  - {name: hello, namespace: default, global: true, ports: [{port: 80, targetPort: 8080}]}
workloads:
  - {uid: east/default/shop-1, name: shop-1, namespace: default, serviceAccount: shop, network: east, node: east-1, addresses: [10.1.0.1]}
`

func load(t *testing.T, yaml string) (nodeproxy.Config, []string, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"node.yaml": yaml, "mesh.yaml": aMesh, "other.yaml": aMesh} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return nodeproxy.LoadConfig("node.yaml")
}

func TestConfigDefaultsAreWhatIsLeftOut(t *testing.T) {
	got, warnings, err := load(t, smallest)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	want := nodeproxy.DefaultConfig()
	want.Node, want.Network, want.Discovery.File, want.Identity.Dir = "east-1", "east", "mesh.yaml", "ca"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestConfigMistakesNameFieldValueAndRemedy(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       []string
	}{
		{"empty file", "", []string{"node.yaml", "empty"}},
		{"unknown key", smallest + "oubtound: []\n", []string{"node.yaml:5", "oubtound", "outbound"}},
		{"unknown nested key", smallest + "retry: {attempt: 3}\n", []string{"attempt", "attempts"}},
		{"two documents", smallest + "---\nnode: b\n", []string{"node.yaml"}},
		{"no node", "network: east\ndiscovery: {file: mesh.yaml}\n", []string{"node", "empty"}},
		{"no network", "node: east-1\ndiscovery: {file: mesh.yaml}\n", []string{"network", "empty"}},
		{"no discovery", "node: east-1\nnetwork: east\n", []string{"discovery.file", "empty"}},
		{"bad service account", smallest + "serviceAccount: nodeproxy\n", []string{"serviceAccount", `"nodeproxy"`, "namespace/name"}},
		{"bad trust domain", smallest + "trustDomain: \"not a domain\"\n", []string{"not a domain"}},
		{"bad scope", smallest + "outlierDetection: {scope: pod}\n", []string{"outlierDetection.scope", `"pod"`, "networkService"}},
		{"bad floor", smallest + "outlierDetection: {ewmaHealthFloor: 1.5}\n", []string{"outlierDetection.ewmaHealthFloor", "1.5", "below 1"}},
		{"negative attempts", smallest + "retry: {attempts: -1}\n", []string{"retry.attempts", "-1", "0 and 100"}},
		{"negative budget", smallest + "retry: {budgetRatio: -0.5}\n", []string{"retry", "-0.5", "negative"}},
		{"app timeout over connect", smallest + "timeouts: {app: 9s}\n", []string{"timeouts.app", "9s", "timeouts.connect", "5s"}},
		{"transport of the own network", smallest + "lines: {transports: {east: quic}}\n", []string{"node.yaml:5", "lines.transports", "east", "remove"}},
		{"zero timeout", smallest + "timeouts: {handshake: 0s}\n", []string{"timeouts.handshake", "0s", "positive"}},
		{"outbound without listen", smallest + "outbound: [{workload: a, to: \"b:80\"}]\n", []string{"outbound[0]", "listen"}},
		{"outbound to nowhere", smallest + "outbound: [{workload: a, listen: 127.0.0.1:80, to: b}]\n", []string{"outbound[0].to", `"b"`, "host:port"}},
		{"outbound to port 99999", smallest + "outbound: [{workload: a, listen: 127.0.0.1:80, to: \"b:99999\"}]\n", []string{"outbound[0].to", "b:99999", "65535"}},
		{"listen port out of range", smallest + "outbound: [{workload: a, listen: 127.0.0.1:99999, to: \"b:80\"}]\n", []string{"node.yaml:5", "127.0.0.1:99999"}},
		{"one address twice", smallest + "outbound: [{workload: a, listen: 127.0.0.1:80, to: \"b:80\"}]\nsocks: [{workload: a, listen: 127.0.0.1:80}]\n", []string{"socks[0].listen", "127.0.0.1:80", "outbound[0]"}},
		{"socks without workload", smallest + "socks: [{listen: 127.0.0.1:15080}]\n", []string{"socks[0]", "workload"}},
		{"admin for everybody", smallest + "admin: {address: 10.0.0.1:15000}\n", []string{"admin.address", "10.0.0.1:15000"}},
		{"admin address empty", smallest + "admin: {address: \"\"}\n", []string{"node.yaml:5", "admin.address", "is empty", "leave the key out"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := load(t, c.yaml)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
}

func TestAllMistakesAreReportedAtOnceInTheOrderOfTheFields(t *testing.T) {
	c := nodeproxy.DefaultConfig()
	c.TrustDomain, c.ServiceAccount = "Not a domain", "nodeproxy"
	c.Discovery.MaxRemoval = 1.5
	c.Identity.Source, c.Identity.TTL = "spire", time.Millisecond
	c.Outbound = []nodeproxy.Outbound{{Workload: "a", Listen: netip.MustParseAddrPort("127.0.0.1:80"), To: "nowhere"}}
	c.OutlierDetection.Scope, c.OutlierDetection.Mode, c.OutlierDetection.FailureThreshold, c.OutlierDetection.JitterFrac = "pod", health.ModeHybrid, 0, 1
	c.OutlierDetection.EWMAHealthFloor, c.OutlierDetection.EWMAAlpha = 1, 2
	c.Inbound.Ports = "some"
	c.Retry = nodeproxy.Retry{Attempts: -1, BudgetBurst: -1, BudgetRatio: -1}
	c.Timeouts = nodeproxy.Timeouts{App: -1}
	c.Limits = admission.Config{Identity: admission.IdentityLimits{Sessions: -1, StreamsPerSecond: -1}, Address: admission.AddressLimits{Streams: -1, UnreadBytes: -1}}
	c.Admin.Address = netip.MustParseAddrPort("10.0.0.1:15000")
	c.Log = logging.Config{Level: "loud", Format: "xml"}
	broken := []string{"node", "network", "trustDomain", "serviceAccount", "discovery.file", "discovery.maxRemoval", "identity.source", "identity.dir", "identity.ttl", "inbound.ports", "outbound[0].to",
		"outlierDetection.scope", "outlierDetection.ewmaHealthFloor", "outlierDetection.ewmaAlpha", "outlierDetection.failureThreshold", "outlierDetection.jitterFrac",
		"retry.attempts", "retry.deadline", "retry.budgetBurst", "retry.budgetRatio",
		"timeouts.dial", "timeouts.handshake", "timeouts.connect", "timeouts.app", "timeouts.idle", "timeouts.drain", "timeouts.certificateGrace",
		"limits.handshakes", "limits.identity.sessions", "limits.identity.streamsPerSecond", "limits.address.streams", "limits.address.unreadBytes", "admin.address", "log.level", "log.format"}
	var want []string // in the order of the fields of the file
	for _, k := range strictyaml.Keys(c) {
		if f := strings.NewReplacer("[].", "[0].").Replace(k.Name); slices.Contains(broken, f) {
			want = append(want, f)
		}
	}
	if len(want) != len(broken) {
		t.Fatalf("%d of the fields %q are keys: %q", len(want), broken, want)
	}
	for range 20 { // a map in between would show
		_, err := c.Validate()
		var got []string
		for line := range strings.Lines(err.Error()) {
			field, _, _ := strings.Cut(line, ": ")
			got = append(got, field)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
	}
}

func TestEnvironmentOverridesTheFile(t *testing.T) {
	for k, v := range map[string]string{
		"EWMA_HEALTH_FLOOR": "-1", "EWMA_ALPHA": "0.4", "CIRCUIT_BREAKER_FAILURE_THRESHOLD": "3", "CIRCUIT_BREAKER_BASE_BACKOFF_SECS": "7",
		"CIRCUIT_BREAKER_MAX_BACKOFF_SECS": "70", "CIRCUIT_BREAKER_JITTER_FRAC": "0.1", "NETWORK": "north", "NODE_NAME": "north-7",
		"ISTHMUS_RETRY_ATTEMPTS": "0", "ISTHMUS_FEDERATION_HEALTH": "false", "ISTHMUS_OUTLIER_SCOPE": "networkService", "LOCAL_XDS_PATH": "other.yaml",
	} {
		t.Setenv(k, v)
	}
	c, warnings, err := load(t, smallest+"outlierDetection: {ewmaHealthFloor: 0.5}\nretry: {attempts: 9}\n")
	if err != nil {
		t.Fatal(err)
	}
	o := c.OutlierDetection
	if o.EWMAHealthFloor != -1 || o.EWMAAlpha != 0.4 || o.FailureThreshold != 3 || o.BaseBackoffSecs != 7 || o.MaxBackoffSecs != 70 || o.JitterFrac != 0.1 || o.Scope != nodeproxy.ScopeNetworkService {
		t.Errorf("outlier detection %+v", o)
	}
	if c.Network != "north" || c.Node != "north-7" || c.Retry.Attempts != 0 || c.Federation.Health || c.Discovery.File != "other.yaml" {
		t.Errorf("network %s, node %s, attempts %d, federation %v, discovery %s", c.Network, c.Node, c.Retry.Attempts, c.Federation.Health, c.Discovery.File)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "moving average is off") {
		t.Errorf("warnings %q; want one that says that the moving average is off", warnings)
	}
	t.Setenv("CIRCUIT_BREAKER_FAILURE_THRESHOLD", "two")
	if _, _, err := load(t, smallest); err == nil || !strings.Contains(err.Error(), "CIRCUIT_BREAKER_FAILURE_THRESHOLD") || !strings.Contains(err.Error(), "two") {
		t.Errorf("a bad variable: %v; want an error that names it and its value", err)
	}
}

// A cluster domain with svc. before it, or in a zone of the mesh, would take the names of services
// from pods. The error has the remedy.
func TestClusterDomainIsChecked(t *testing.T) {
	for domain, want := range map[string]string{
		"k8s.example":               "",
		"Cluster.Local.":            "",
		"svcs.example":              "",
		"example.svc.k8s":           "",
		"mesh.internal.example":     "",
		"notclusterset.local":       "",
		"foo bar":                   "is no domain",
		".":                         "is no domain",
		"svc.k8s.example":           "write k8s.example, or leave it out",
		"SVC.k8s.example.":          "write k8s.example, or leave it out",
		"svc":                       "write the domain, or leave it out",
		"mesh.internal":             "is in mesh.internal",
		"east.mesh.internal.":       "is in mesh.internal",
		"clusterset.local":          "is in clusterset.local",
		"demo.svc.ClusterSet.Local": "is in clusterset.local",
	} {
		_, _, err := load(t, smallest+"\nclusterDomain: "+strconv.Quote(domain)+"\n")
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "clusterDomain")) {
			t.Errorf("clusterDomain %q: %v; want %q", domain, err, want)
		}
	}
}

func TestNewNamesWhatCannotWork(t *testing.T) {
	p := newPair(t, 1)
	p.Write()
	p.shop.Serve(15080, nil)
	p.shop.Serve(15008, nil)
	for _, c := range []struct {
		name string
		edit func(*nodeproxy.Config)
		want []string
	}{
		{"no discovery file", func(c *nodeproxy.Config) { c.Discovery.File = "/nowhere.yaml" }, []string{"/nowhere.yaml"}},
		{"no CA", func(c *nodeproxy.Config) { c.Identity.Dir = t.TempDir() }, []string{"identity.dir"}},
		{"socks address in use", func(*nodeproxy.Config) {}, []string{"socks[0].listen", p.shop.Socks.String(), "choose a free address"}},
		{"pod address in use", func(c *nodeproxy.Config) { c.Socks = nil }, []string{p.shop.UID, p.shop.At(15008).String(), "another node proxy"}},
		{"admin address in use", func(c *nodeproxy.Config) { c.Admin.Address = p.shop.Socks }, []string{"admin.address", p.shop.Socks.String()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := p.NodeConfig("east", "east-1")
			c.edit(&cfg)
			_, err := nodeproxy.New(cfg, zerolog.Nop())
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not name %q", err, want)
				}
			}
		})
	}
	// What failed has let go of everything that it had bound.
	for _, at := range []addr{p.listen.hello, p.listen.other} {
		if c, err := meshtest.Dial(at); err == nil {
			c.Close()
			t.Errorf("%s is still listened on", at)
		}
	}
}

// --check fails for a token that a running node proxy would wait for.
func TestCheckReadsToken(t *testing.T) {
	p := newPair(t, 1)
	p.Write()
	path := filepath.Join(t.TempDir(), "token")
	check := func(token string) error {
		cfg := p.NodeConfig("east", "east-1")
		cfg.Federation.Token = token
		n, err := nodeproxy.Open(cfg, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		return n.Check()
	}
	if err := check(""); err != nil {
		t.Errorf("without federation.token: %v", err)
	}
	if err := check(path); err == nil || !strings.Contains(err.Error(), "federation.token: ") || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v; want an error that names federation.token and %s", err, path)
	}
	for mode, want := range map[os.FileMode]string{0o600: "", 0o666: "mode 0666"} {
		if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := check(path); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("mode %04o: %v; want %q", mode, err, want)
		}
	}
}

func TestAdminShowsReadinessMetricsAndState(t *testing.T) {
	p := newPair(t, 1)
	p.Gateway("east", "gw-1")
	p.pods[0].App(8080)
	p.Start()
	if _, err := meshtest.Hello(p.listen.hello); err != nil {
		t.Fatal(err)
	}
	held, err := meshtest.Dial(p.listen.hello)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := meshtest.Ask(held, "1"); err != nil {
		t.Fatal(err)
	}
	state := p.client().State(t)
	if state["node"] != "east-1" || state["network"] != "east" || state["attachedGateways"] != float64(1) || state["draining"] != false {
		t.Errorf("/state = %v", state)
	}
	// The first connection may still be ending.
	meshtest.Eventually(t, "hello:80 on west is known, healthy, with one open connection", func() bool {
		return p.client().Row(t, "networkServices", "network", "west", "service", "hello.default.svc.cluster.local", "port", 80,
			"known", true, "ready", 1, "healthy", 1, "phase", "healthy", "open", 1) != nil
	})
	meshtest.Eventually(t, "the gateway is healthy with one open connection", func() bool {
		return p.client().Row(t, "gateways", "network", "west", "name", "gw-1", "phase", "healthy", "open", 1) != nil
	})
	if n := p.client().Metric(t, `isthmus_connections_opened_total{reporter="source"}`); n != 2 {
		t.Errorf("opened, as source: %v; want 2", n)
	}
	if n := p.node(1).Metric(t, `isthmus_connections_opened_total{reporter="destination"}`); n != 2 {
		t.Errorf("opened, as destination: %v; want 2", n)
	}
	if status, body := p.client().Get(t, "/healthz/ready"); status != 200 || !strings.Contains(body, "true") {
		t.Errorf("/healthz/ready = %d %q", status, body)
	}
}

// What is odd in one field hides neither what is odd in others, nor the names that
// discovery does not know.
func TestConfigMistakesOfEveryKindComeAtOnce(t *testing.T) {
	m := meshtest.New(t)
	m.Networks("east")
	m.Service("hello", 80, 8080)
	m.Pod("east", "east-1", "shop-1")
	m.Write()
	_, _, err := load(t, "node: east-2\nnetwork: east\nidentity: {dir: ca}\ndiscovery: {file: "+m.File()+"}\nretry: {attempts: many}\ntimeouts: {dial: 0s}\n"+
		"outbound:\n  - {workload: east/default/shop-1, listen: 127.0.0.1:80, to: \"hallo.default.svc.cluster.local:80\"}\nsokcs: []\n")
	if err == nil {
		t.Fatal("no error")
	}
	want := []string{"node.yaml:1: node: ", "node.yaml:5: retry.attempts: ", "node.yaml:6: timeouts.dial: ", "node.yaml:8: outbound[0].to: ", "node.yaml:9: unknown key "}
	got := strings.Split(err.Error(), "\n")
	if len(got) != len(want) {
		t.Fatalf("%d mistakes, want %d:\n%v", len(got), len(want), err)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("mistake %d is %q; want it to say %q", i, got[i], want[i])
		}
	}
}

// What of the discovery file cannot be used is no reason not to start, unless it is what
// the configuration names, or all of it.
func TestOddObjectsOfTheDiscoveryFileStopNoStart(t *testing.T) {
	const twin = "  - {uid: east/default/a-twin, network: east, node: east-1, addresses: [10.1.0.1]}\n"
	shop := "outbound:\n  - {workload: east/default/shop-1, listen: 127.0.0.1:80, to: \"hello.default.svc.cluster.local:80\"}\n"
	for name, c := range map[string]struct {
		mesh string
		want []string
	}{
		"an odd object":          {aMesh + "  - {uid: east/default/odd, network: east, node: east-1, addresses: [\"::\"]}\n", nil},
		"what is named is out":   {aMesh + twin, []string{`node.yaml:6: outbound[0].workload: mesh.yaml has no workload "east/default/shop-1"`, `workloads[0].addresses[0]: "10.1.0.1": is also an address of workload "east/default/a-twin"`}},
		"nothing can be used":    {"networks: [{name: east, nodes: [east-1]}]\nservices: [{name: Hello, ports: [{port: 80}]}]\n", []string{"mesh.yaml:2: services[0].name: ", "mesh.yaml: nothing of it can be used"}},
		"a key is not known":     {aMesh + "sevices: []\n", []string{"mesh.yaml", "sevices"}},
		"no network can be used": {"networks: [{name: East}]\n", []string{`mesh.yaml:1: networks[0].name: "East"`, "nothing of it can be used"}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := load(t, smallest); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"mesh.yaml": c.mesh, "node.yaml": smallest + shop} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, _, err := nodeproxy.LoadConfig("node.yaml")
			if (err == nil) != (c.want == nil) {
				t.Fatalf("error %v, want of %q", err, c.want)
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("it says\n%v\nwant it to say %q", err, want)
				}
			}
		})
	}
}

// Each mistake is one line with its place, whatever kinds there are, and no mistake makes
// another one up or hides one that does not depend on it.
func TestConfigNamesThatAreNotKnownHaveTheirLines(t *testing.T) {
	const listeners = "\noutbound:\n  - {workload: east/default/shop-2, listen: 127.0.0.1:81, to: \"hallo.default.svc.cluster.local:80\"}\n"
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"names alone": {smallest + listeners, []string{`node.yaml:7: outbound[0].workload: mesh.yaml has no workload "east/default/shop-2" on this node: did you mean "east/default/shop-1"?`, "node.yaml:7: outbound[0].to: "}},
		"wrong node": {strings.Replace(smallest, "east-1", "east-2", 1) + listeners, []string{`node.yaml:1: node: mesh.yaml has no node "east-2"`,
			`node.yaml:7: outbound[0].workload: mesh.yaml has no workload "east/default/shop-2": did you mean "east/default/shop-1"?`, "node.yaml:7: outbound[0].to: "}},
		"wrong network": {strings.Replace(smallest, "network: east", "network: esat", 1) + listeners, []string{`node.yaml:2: network: "esat"`, "node.yaml:7: outbound[0].workload: ", "node.yaml:7: outbound[0].to: "}},
		"no network":    {strings.Replace(smallest, "network: east\n", "", 1), []string{"network: is empty"}},
		"no node":       {strings.Replace(smallest, "node: east-1\n", "", 1), []string{"node: is empty"}},
		"no such file":  {strings.Replace(smallest, "mesh.yaml", "mseh.yaml", 1), []string{"node.yaml:3: discovery.file: open mseh.yaml: no such file or directory: give a path from the root, or from the directory that the process is started in"}},
		"no listener":   {smallest + "outbound:\n  - {listen: 127.0.0.1:81, to: \"hello.default.svc.cluster.local:80\"}\n", []string{"node.yaml:6: outbound[0]: needs workload"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := load(t, c.yaml)
			if err == nil {
				t.Fatal("no error")
			}
			got := strings.Split(err.Error(), "\n")
			if len(got) != len(c.want) {
				t.Fatalf("%d mistakes, want %d:\n%v", len(got), len(c.want), err)
			}
			for i := range c.want {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("mistake %d is %q; want it to say %q", i, got[i], c.want[i])
				}
			}
		})
	}
}

// The words are those of ztunnel's variable, which are booleans in YAML and empty for auto.
func TestValuesOfOriginalSource(t *testing.T) {
	for value, good := range map[string]bool{"auto": true, "true": true, "false": true, "yes": false, "always": false} {
		c, _, err := load(t, smallest+"capture: {scope: vips, originalSource: "+value+"}\n")
		if (err == nil) != good || good && c.Capture.OriginalSource != value {
			t.Errorf("%s is read as %q, %v", value, c.Capture.OriginalSource, err)
		}
	}
	for value, want := range map[string]string{"": "auto", "true": "true", "false": "false"} {
		t.Setenv("ENABLE_ORIG_SRC", value)
		if c, _, err := load(t, smallest+"capture: {scope: vips}\n"); err != nil || c.Capture.OriginalSource != want {
			t.Errorf("ENABLE_ORIG_SRC=%s is read as %q, %v; want %s", value, c.Capture.OriginalSource, err, want)
		}
	}
}

// Without the proc file system no pod is found, which nothing would say before one is called.
func TestProcThatIsNotThereIsAMistakeWhereItIsNeeded(t *testing.T) {
	folder := t.TempDir()
	for scope, needed := range map[string]bool{"off": false, "vips": true, "all": true, "release": true} {
		for proc, want := range map[string]string{
			"/proc":         "",
			"proc":          `node.yaml:5: capture.proc: "proc" is no absolute path: use /proc`,
			"/nonesuch":     "node.yaml:5: capture.proc: stat /nonesuch: no such file or directory: no pod would be found without it: use /proc",
			"/proc/version": `node.yaml:5: capture.proc: "/proc/version" is no directory: use /proc`,
			folder:          fmt.Sprintf("node.yaml:5: capture.proc: %q is no proc file system, as it has no self/cgroup: no pod would be found in it: use /proc", folder),
		} {
			_, _, err := load(t, smallest+"capture: {scope: "+scope+", proc: "+proc+"}\n")
			if bad := needed && want != ""; bad != (err != nil) || bad && !strings.Contains(err.Error(), want) {
				t.Errorf("scope %s, proc %s: %v; want %q (needed: %v)", scope, proc, err, want, needed)
			}
		}
	}
}

// A socket takes the place of what stands at its path: that may be no file of somebody's, nor a directory.
func TestACNISocketInThePlaceOfSomethingElseIsAMistake(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/proc": "/proc is a directory: name the socket in it, such as /proc/cni.sock",
		file:    file + " is there and is no socket: it would be replaced: name a path that is free, such as /run/isthmus/cni.sock",
	} {
		want = "node.yaml:5: capture.cniSocket: " + want
		if _, _, err := load(t, smallest+"capture: {scope: vips, cniSocket: "+path+"}\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// No service has a multicast address: a range of them is another one mistyped.
func TestARangeOfMulticastIsAMistake(t *testing.T) {
	for _, r := range []string{"224.0.0.0/8", "239.1.0.0/16", "ff02::/32"} {
		want := "node.yaml:5: capture.ranges[0]: " + r + ": holds loopback, link-local or multicast addresses"
		if _, _, err := load(t, smallest+"capture: {scope: vips, ranges: ['"+r+"']}\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Who writes that listening sockets are watched is told where they are not; that it is so by default is no
// such word.
func TestListenersThatNoScopeWatchesAreAWarning(t *testing.T) {
	for text, want := range map[string]string{
		"{scope: networkService}":                   "",
		"{scope: networkService, listeners: false}": "",
		"{scope: endpoint, listeners: true}":        "",
		"{scope: networkService, listeners: true}":  "outlierDetection.listeners: true does nothing with scope networkService",
		"{scope: none, listeners: true}":            "outlierDetection.listeners: true does nothing with scope none",
	} {
		_, warnings, err := load(t, smallest+"outlierDetection: "+text+"\n")
		if err != nil || len(warnings) > 1 || (want == "") != (len(warnings) == 0) || !strings.Contains(strings.Join(warnings, ""), want) {
			t.Errorf("%s: %v, warnings %q; want %q", text, err, warnings, want)
		}
	}
	t.Setenv("ISTHMUS_OUTLIER_LISTENERS", "true")
	if _, warnings, err := load(t, smallest+"outlierDetection: {scope: none}\n"); err != nil || len(warnings) != 1 {
		t.Errorf("by the environment: %v, warnings %q; want one", err, warnings)
	}
}

func TestTransportOfUnknownNetworkIsWarned(t *testing.T) {
	_, warnings, err := load(t, smallest+"lines: {transports: {wset: auto, west: quic}}\n")
	if err != nil {
		t.Fatal(err)
	}
	if want := `node.yaml:5: lines.transports: "wset" is not a network of mesh.yaml: did you mean "west"?`; len(warnings) != 1 || warnings[0] != want {
		t.Errorf("warnings %q, want %q", warnings, want)
	}
}
