package gateway_test

import (
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/health"
	"github.com/isthmus-mesh/isthmus/internal/admission"
	"github.com/isthmus-mesh/isthmus/internal/logging"
	"github.com/isthmus-mesh/isthmus/internal/strictyaml"
)

const smallest = "name: gw-1\nnetwork: west\ndiscovery: {file: mesh.yaml}\nidentity: {dir: ca}\nfederation: {keys: network}\n"

// aMesh is what the configurations of these tests find as mesh.yaml in the directory
// that they are read in.
const aMesh = `networks:
  - {name: east, nodes: [east-1]}
  - {name: west, nodes: [west-9]}
  - {name: north, nodes: [north-1]}
gateways:
  - {name: gw-1, network: west, address: "127.20.2.1:15008", serviceAccount: isthmus-system/gateway-west}
  - {name: gw-7, network: north, address: "127.1.2.3:15008", serviceAccount: isthmus-system/gateway-north}
services:
  - {name: hello, namespace: default, global: true, ports: [{port: 80, targetPort: 8080}]}
workloads:
  - {uid: east/default/shop-1, name: shop-1, namespace: default, serviceAccount: shop, network: east, node: east-1, addresses: [10.1.0.1]}
`

func load(t *testing.T, yaml string) (gateway.Config, []string, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"gateway.yaml": yaml, "mesh.yaml": aMesh} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return gateway.LoadConfig("gateway.yaml")
}

func TestConfigDefaultsAreWhatIsLeftOut(t *testing.T) {
	got, warnings, err := load(t, smallest)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("%v, warnings %q", err, warnings)
	}
	want := gateway.DefaultConfig()
	want.Name, want.Network, want.Discovery.File, want.Identity.Dir, want.Federation.Keys = "gw-1", "west", "mesh.yaml", "ca", "network"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestConfigMistakesNameFieldValueAndRemedy(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       []string
	}{
		{"empty file", "", []string{"gateway.yaml", "empty"}},
		{"unknown key", smallest + "netwrok: west\n", []string{"gateway.yaml:6", "netwrok", "network"}},
		{"unknown nested key", smallest + "timeouts: {diall: 2s}\n", []string{"diall", "dial"}},
		{"no name", "network: west\ndiscovery: {file: mesh.yaml}\n", []string{"name", "empty", "discovery file"}},
		{"no network", "name: gw-1\ndiscovery: {file: mesh.yaml}\n", []string{"network", "empty"}},
		{"no discovery", "name: gw-1\nnetwork: west\n", []string{"discovery.file", "empty"}},
		{"no key", strings.Replace(smallest, "{keys: network}", "{}", 1), []string{"federation.keys", "must be set", "isthmus network init", "--network west"}},
		{"bad scope", smallest + "outlierDetection: {scope: pod}\n", []string{"outlierDetection.scope", `"pod"`, "endpoint", "none"}},
		{"bad mode", smallest + "outlierDetection: {mode: fast}\n", []string{"outlierDetection.mode", `"fast"`, "hybrid"}},
		{"bad alpha", smallest + "outlierDetection: {ewmaAlpha: 2}\n", []string{"outlierDetection.ewmaAlpha", "2", "at most 1"}},
		{"zero timeout", smallest + "timeouts: {dial: 0s}\n", []string{"timeouts.dial", "0s", "positive"}},
		{"a duration without a unit", smallest + "timeouts: {dial: 5}\n", []string{"gateway.yaml:6", "dial", "5"}},
		{"admin for everybody", smallest + "admin: {address: 0.0.0.0:15000}\n", []string{"admin.address", "0.0.0.0:15000", "127"}},
		{"admin address empty", smallest + "admin: {address: \"\"}\n", []string{"gateway.yaml:6", "admin.address", "is empty", "leave the key out"}},
		{"a Service of QUIC alone", smallest + "address: {quicService: a/b}\n", []string{"gateway.yaml:6", "address.quicService", "address.service is empty"}},
		{"QUIC with reusePort", smallest + "reusePort: true\nlines: {transport: auto}\n", []string{"gateway.yaml:6", "reusePort", "true", "lines.transport (auto)", "tcp"}},
		{"QUIC of one network with reusePort", smallest + "reusePort: true\nlines: {transports: {east: quic}}\n", []string{"gateway.yaml:6", "reusePort", "lines.transports", "tcp"}},
		{"bad transport of a network", smallest + "lines: {transports: {east: udp}}\n", []string{"gateway.yaml:6", "lines.transports", "east", `"udp"`, "quic"}},
		{"bad listen", smallest + "listen: somewhere\n", []string{"gateway.yaml:6", "listen", "somewhere"}},
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

// A gateway starts beside objects that it cannot use, unless it is one of them.
func TestOddObjectsOfTheDiscoveryFileStopNoStart(t *testing.T) {
	with := func(mesh string) error {
		if _, _, err := load(t, smallest); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("mesh.yaml", []byte(mesh), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := gateway.LoadConfig("gateway.yaml")
		return err
	}
	if err := with(aMesh + "  - {uid: east/default/odd, network: esat, node: east-1, addresses: [10.1.0.2]}\n"); err != nil {
		t.Errorf("a workload of an unknown network stops the start: %v", err)
	}
	err := with(strings.Replace(aMesh, "127.20.2.1:15008", "0.0.0.0:15008", 1))
	for _, want := range []string{`name: mesh.yaml lists no gateway "gw-1"`, "mesh.yaml:6: gateways[0].address: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without its own gateway: error %v, want it to say %q", err, want)
		}
	}
}

func TestAllMistakesAreReportedAtOnceInTheOrderOfTheFields(t *testing.T) {
	c := gateway.DefaultConfig()
	c.TrustDomain, c.NodeServiceAccount = "Not a domain", "nodeproxy"
	c.Discovery.MaxRemoval = 1.5
	c.Discovery.Kube.InCluster, c.Discovery.Kube.Kubeconfig, c.Discovery.Kube.SystemNamespace = true, "/nowhere", "Istio System"
	c.Identity.Source, c.Identity.TTL = "spire", time.Millisecond
	c.OutlierDetection.Scope, c.OutlierDetection.Mode, c.OutlierDetection.FailureThreshold, c.OutlierDetection.JitterFrac = "pod", health.ModeHybrid, 0, 1
	c.OutlierDetection.EWMAHealthFloor, c.OutlierDetection.EWMAAlpha = 1, 2
	c.Retry = gateway.Retry{BudgetBurst: -1, BudgetRatio: -1}
	c.Timeouts = gateway.Timeouts{LameDuck: -1}
	c.Limits = gateway.Limits{Config: admission.Config{Identity: admission.IdentityLimits{Sessions: -1, StreamsPerSecond: -1}, Address: admission.AddressLimits{Streams: -1, UnreadBytes: -1}}, Inner: gateway.InnerLimits{HandshakesPerIdentity: -1, HandshakesPerPod: -1}}
	c.Admin.Address = netip.MustParseAddrPort("10.0.0.1:15000")
	c.Log = logging.Config{Level: "loud", Format: "xml"}
	broken := []string{"name", "network", "trustDomain", "nodeServiceAccount", "discovery.file", "discovery.maxRemoval", "discovery.kube.inCluster", "discovery.kube.systemNamespace", "identity.source", "identity.dir", "identity.ttl",
		"outlierDetection.scope", "outlierDetection.ewmaHealthFloor", "outlierDetection.ewmaAlpha", "outlierDetection.failureThreshold", "outlierDetection.jitterFrac", "federation.keys",
		"retry.budgetBurst", "retry.budgetRatio",
		"timeouts.handshake", "timeouts.dial", "timeouts.hello", "timeouts.answer", "timeouts.silence", "timeouts.halfClosed", "timeouts.lameDuck", "timeouts.drain", "timeouts.certificateGrace",
		"limits.handshakes", "limits.identity.sessions", "limits.identity.streamsPerSecond", "limits.address.streams", "limits.address.unreadBytes", "limits.inner.handshakesPerIdentity", "limits.inner.handshakesPerPod", "limits.inner.wait", "admin.address", "log.level", "log.format"}
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
		"EWMA_HEALTH_FLOOR": "0.1", "EWMA_ALPHA": "0.4", "CIRCUIT_BREAKER_FAILURE_THRESHOLD": "3", "CIRCUIT_BREAKER_BASE_BACKOFF_SECS": "7",
		"CIRCUIT_BREAKER_MAX_BACKOFF_SECS": "70", "CIRCUIT_BREAKER_JITTER_FRAC": "0", "NETWORK": "north", "ISTHMUS_GATEWAY_NAME": "gw-7",
		"ISTHMUS_LISTEN": "127.1.2.3:15008", "ISTHMUS_FEDERATION_HEALTH": "false", "ISTHMUS_OUTLIER_SCOPE": "none",
	} {
		t.Setenv(k, v)
	}
	c, _, err := load(t, smallest+"outlierDetection: {ewmaHealthFloor: 0.5}\n")
	if err != nil {
		t.Fatal(err)
	}
	o := c.OutlierDetection
	if o.EWMAHealthFloor != 0.1 || o.EWMAAlpha != 0.4 || o.FailureThreshold != 3 || o.BaseBackoffSecs != 7 || o.MaxBackoffSecs != 70 || o.JitterFrac != 0 || o.Scope != "none" {
		t.Errorf("outlier detection %+v", o)
	}
	if c.Network != "north" || c.Name != "gw-7" || c.Listen.String() != "127.1.2.3:15008" || c.Federation.Health {
		t.Errorf("network %s, name %s, listen %s, federation %v", c.Network, c.Name, c.Listen, c.Federation.Health)
	}
	t.Setenv("EWMA_ALPHA", "much")
	if _, _, err := load(t, smallest); err == nil || !strings.Contains(err.Error(), "EWMA_ALPHA") || !strings.Contains(err.Error(), "much") {
		t.Errorf("a bad variable: %v; want an error that names it and its value", err)
	}
}

func TestConfigOfUnlikelyKnobsWarns(t *testing.T) {
	_, warnings, err := load(t, smallest+"outlierDetection: {ewmaAlpha: 0.9}\ntimeouts: {drain: 1m30s}\n")
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "ewmaAlpha 0.9") {
		t.Errorf("%v, warnings %q; want one about ewmaAlpha", err, warnings)
	}
	c, _, err := load(t, smallest+"timeouts: {drain: 1m30s}\n")
	if err != nil || c.Timeouts.Drain != 90*time.Second || c.Timeouts.Dial != gateway.DefaultConfig().Timeouts.Dial {
		t.Errorf("timeouts %+v, %v; want drain 1m30s and the rest as ever", c.Timeouts, err)
	}
}
