package kubernetes

import (
	"context"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	yamlv3 "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
)

// installed applies what the chart renders of accounts and rights, and returns its
// configurations.
func (c *cluster) installed(t *testing.T, golden string) (configs map[string]string) {
	t.Helper()
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	configs = map[string]string{}
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var kind struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		into := map[string]any{"ServiceAccount": &corev1.ServiceAccount{}, "ConfigMap": &corev1.ConfigMap{}, "ClusterRole": &rbacv1.ClusterRole{}, "ClusterRoleBinding": &rbacv1.ClusterRoleBinding{},
			"Role": &rbacv1.Role{}, "RoleBinding": &rbacv1.RoleBinding{}}[kind.Kind]
		if into == nil {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Fatalf("%s: %v\n%s", kind.Kind, err, doc)
		}
		o, ctx := metav1.CreateOptions{}, t.Context()
		switch x := into.(type) {
		case *corev1.ServiceAccount:
			_, err = c.CoreV1().ServiceAccounts(x.Namespace).Create(ctx, x, o)
		case *corev1.ConfigMap:
			for k, v := range x.Data {
				configs[k] = v
			}
		case *rbacv1.Role:
			_, err = c.RbacV1().Roles(x.Namespace).Create(ctx, x, o)
		case *rbacv1.RoleBinding:
			_, err = c.RbacV1().RoleBindings(x.Namespace).Create(ctx, x, o)
		default:
			c.apply(t, x)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return configs
}

// asPod writes the tokens that the chart projects into p, below dir, and the kubeconfig of
// its account, and returns that.
func (c *cluster) asPod(t *testing.T, p *corev1.Pod, dir string, tokens map[string]string) string {
	t.Helper()
	for file, audience := range tokens {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(c.token(t, p, audience)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	api := filepath.Join(dir, "api-token")
	if err := os.WriteFile(api, []byte(c.token(t, p, "https://kubernetes.default.svc")), 0o600); err != nil {
		t.Fatal(err)
	}
	k := clientcmdapi.NewConfig()
	k.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthority: c.at("ca.crt")}
	k.AuthInfos["c"] = &clientcmdapi.AuthInfo{TokenFile: api}
	k.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	k.CurrentContext = "c"
	if err := clientcmd.WriteToFile(*k, api+".kubeconfig"); err != nil {
		t.Fatal(err)
	}
	return api + ".kubeconfig"
}

// The controller and a gateway become ready with the configuration, the accounts, the rights
// and the tokens that the chart gives them, at a real API server; the gateway's certificate
// comes from the controller.
func TestTheProcessesOfTheChartBecomeReady(t *testing.T) {
	c := startCluster(t)
	c.definitions(t)
	m := meshtest.New(t)
	m.Networks("west")
	m.Gateway("west", "gw-1")
	m.Write()
	ring, ca := m.Keys("west"), filepath.Join(m.Dir(), "ca")
	c.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	configs := c.installed(t, "../../helm/testdata/smallest.golden.yaml")
	run := func(name string, at netip.Addr, tokens map[string]string, replace []string, edit func(map[string]any), start func(path string, log zerolog.Logger) (interface{ Run(context.Context) error }, error)) {
		t.Helper()
		dir, pod := t.TempDir(), c.agent(t, system, name, "isthmus-"+name+"-1", "node-1")
		api := c.asPod(t, pod, dir, tokens)
		text := strings.NewReplacer(append([]string{"/etc/isthmus/root/bundle.pem", filepath.Join(ca, "ca.pem"), "/etc/isthmus/ca", ca, "/etc/isthmus/networks/networks.yaml", ring.List, "/etc/isthmus/network", ring.Dir,
			"/var/run/secrets/isthmus", dir, "/var/lib/isthmus", dir, "0.0.0.0", at.String(), "inCluster: true", "kubeconfig: " + api}, replace...)...).Replace(configs[name+".yaml"])
		var config map[string]any
		if err := yamlv3.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		config["admin"] = map[string]any{"address": netip.AddrPortFrom(at, 15000).String()}
		edit(config)
		b, err := yamlv3.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		log := &buffer{}
		p, err := start(path, zerolog.New(log))
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, b)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if t.Failed() {
				t.Logf("log of %s:\n%s", name, log.String())
			}
		})
		eventually(t, 30*time.Second, name+" is ready", func() bool {
			r, err := http.Get("http://" + netip.AddrPortFrom(at, 15020).String() + "/healthz/ready")
			if err != nil {
				return false
			}
			r.Body.Close()
			return r.StatusCode == http.StatusOK
		})
	}
	controllers, gateways := m.Addr(), m.Addr()
	t.Setenv("POD_NAME", "isthmus-controller-1")
	run("controller", controllers, map[string]string{"gateway-token": "isthmus-gateway"}, []string{"isthmus-gateway-nodes.isthmus-system.svc", gateways.String()}, func(map[string]any) {},
		func(path string, log zerolog.Logger) (interface{ Run(context.Context) error }, error) {
			cfg, _, err := controller.LoadConfig(path)
			if err != nil {
				return nil, err
			}
			return controller.New(cfg, log)
		})
	t.Setenv("ISTHMUS_GATEWAY_NAME", "isthmus-gateway-1")
	t.Setenv("ISTHMUS_DIAL_FROM", gateways.String())
	run("gateway", gateways, map[string]string{"ca-token": "istio-ca"}, []string{"isthmus-controller.isthmus-system.svc", controllers.String()}, func(config map[string]any) {
		config["identity"].(map[string]any)["serverName"] = "isthmus-controller.isthmus-system.svc" // nobody here answers for names
		delete(config, "address")
		d := config["discovery"].(map[string]any)
		delete(d["kube"].(map[string]any), "gateways")
		file := filepath.Join(t.TempDir(), "mesh.yaml") // without a kubelet no pod has an address
		if err := os.WriteFile(file, []byte("trustDomain: cluster.local\nnetworks: [{name: west}]\ngateways: [{name: isthmus-gateway-1, network: west, serviceAccount: isthmus-system/gateway, address: \""+gateways.String()+":15008\"}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		d["file"] = file
		delete(config, "serviceAccount")
		config["timeouts"].(map[string]any)["lameDuck"] = "0s" // nobody waits for the end of the test
	}, func(path string, log zerolog.Logger) (interface{ Run(context.Context) error }, error) {
		cfg, _, err := gateway.LoadConfig(path)
		if err != nil {
			return nil, err
		}
		return gateway.New(cfg, log)
	})
}
