package kubernetes

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authnv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/gateway"
	"github.com/isthmus-mesh/isthmus/internal/meshtest"
	"github.com/isthmus-mesh/isthmus/nodeproxy"
)

const system = "isthmus-system"

// agent makes a pod of an account on a node, as a DaemonSet would.
func (c *cluster) agent(t *testing.T, namespace, account, name, node string) *corev1.Pod {
	t.Helper()
	p, err := c.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "x"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// token asks the API server for a token that is bound to p, as a kubelet does for a
// projected volume.
func (c *cluster) token(t *testing.T, p *corev1.Pod, audience string) string {
	t.Helper()
	seconds := int64(3600)
	r := &authnv1.TokenRequest{Spec: authnv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: &seconds}}
	if p.Name != "" {
		r.Spec.BoundObjectRef = &authnv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}
	}
	r, err := c.CoreV1().ServiceAccounts(p.Namespace).CreateToken(t.Context(), p.Spec.ServiceAccountName, r, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

// expired is token after its time: the same claims, signed by the cluster's own key.
func (c *cluster) expired(t *testing.T, token string) string {
	t.Helper()
	j, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := j.UnsafeClaimsWithoutVerification(&claims); err != nil {
		t.Fatal(err)
	}
	claims["exp"], claims["iat"], claims["nbf"] = time.Now().Add(-time.Minute).Unix(), time.Now().Add(-time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: c.tokenKey(t), KeyID: j.Headers[0].KeyID}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := w.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// reviewRole is what a gateway may do besides role.
func reviewRole() (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding) {
	r, b := role()
	r.Name, b.Name, b.RoleRef.Name = "gateway-tokens", "gateway-tokens", "gateway-tokens"
	r.Rules = []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"tokenreviews"}, Verbs: []string{"create"}},
		{NonResourceURLs: []string{"/openid/v1/jwks", "/.well-known/openid-configuration"}, Verbs: []string{"get"}},
	}
	return r, b
}

// prover is a gateway of west beside a real API server, and node proxies that show it
// tokens.
type prover struct {
	*meshtest.Mesh
	t       *testing.T
	gateway *meshtest.Process
	start   func() *meshtest.Process
}

// by is by which way a node is proven now; empty if it is not attached.
func (p *prover) by(node string) string {
	for _, r := range p.gateway.Rows(p.t, "proven") {
		if r.Has("node", node) {
			how, _ := r["how"].(string)
			return how
		}
	}
	return ""
}

// refused is how many tokens were refused for a reason.
func (p *prover) refused(why string) float64 {
	return p.gateway.Metric(p.t, `isthmus_bound_tokens_total{result="`+why+`"}`)
}

func TestNodesAreProvenByRealBoundTokens(t *testing.T) {
	c := startCluster(t)
	follow, followed := role()
	review, reviewed := reviewRole()
	c.apply(t, follow, followed, review, reviewed,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "istio-system", Labels: map[string]string{"topology.istio.io/network": "west"}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}})
	for _, a := range []struct{ namespace, name string }{{system, "nodeproxy"}, {system, "other"}, {"demo", "nodeproxy"}} {
		if _, err := c.CoreV1().ServiceAccounts(a.namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first, second := c.agent(t, system, "nodeproxy", "nodeproxy-1", "node-1"), c.agent(t, system, "nodeproxy", "nodeproxy-2", "node-2")
	other, elsewhere := c.agent(t, system, "other", "other-1", "node-1"), c.agent(t, "demo", "nodeproxy", "nodeproxy-1", "node-1")

	kubeconfig, keys := c.user(t, c.config.Host, "gateway"), filepath.Join(t.TempDir(), "keys.json")
	p := &prover{Mesh: meshtest.New(t), t: t}
	p.Networks("west")
	p.Gateway("west", "gw-1")
	p.Pod("west", "node-1", "a-1") // a node proxy has to know its node by its file
	p.Pod("west", "node-2", "a-2")
	p.Write()
	p.start = func() *meshtest.Process {
		return p.StartGateway("west", "gw-1", func(g *gateway.Config) {
			g.Discovery.Kube.Kubeconfig, g.Discovery.Kube.KeyCache = kubeconfig, keys
		})
	}
	p.gateway = p.start()
	p.gateway.AwaitReady(t)
	eventually(t, 10*time.Second, "the keys are kept", func() bool { _, err := os.Stat(keys); return err == nil })

	// show starts the node proxy of a node with what it shows as its token, and stops it
	// with done.
	file := func(token string) string {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var shown *meshtest.Process
	show := func(node, path string) (done func()) {
		n := p.StartNode("west", node, func(c *nodeproxy.Config) { c.Federation.Token = path })
		shown = n
		return func() { n.Stop(t) }
	}
	// told reports whether the last node proxy that was started says in its log and its status of
	// which class its refusal is.
	told := func(class string) bool {
		said := slices.ContainsFunc(shown.Log.Find("health stream refused"), func(l meshtest.Line) bool { return strings.Contains(l.Text("error"), "("+class+")") })
		_, status := shown.Get(t, "/status")
		return said && strings.Contains(status, "("+class+")")
	}
	real := c.token(t, first, "isthmus-gateway")
	path := file(real)
	done := show("node-1", path)
	took := eventually(t, 5*time.Second, "a node proxy with its own token is attached", func() bool { return p.by("node-1") == "review" })
	t.Logf("attached by a reviewed token after %v", took.Round(time.Millisecond))

	for name, x := range map[string]struct{ token, why, told string }{
		"the node proxy's of another node":      {real, "node", "pod"},
		"another pod's":                         {c.token(t, other, "isthmus-gateway"), "account", "account"},
		"that of the name in another namespace": {c.token(t, elsewhere, "isthmus-gateway"), "account", "account"},
		"for another audience":                  {c.token(t, second, "istio-ca"), "audience", "audience"},
		"for the API server":                    {c.token(t, second, "https://kubernetes.default.svc"), "audience", "audience"},
		"bound to no pod":                       {c.token(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system}, Spec: corev1.PodSpec{ServiceAccountName: "nodeproxy"}}, "isthmus-gateway"), "not_bound", "token"},
		"expired":                               {c.expired(t, c.token(t, second, "isthmus-gateway")), "expired", "expired"},
		"garbage":                               {"x.y.z", "malformed", "token"},
		"with a changed signature":              {real[:strings.LastIndexByte(real, '.')+1] + strings.Repeat("A", 86), "signature", "token"},
	} {
		before := p.refused(x.why)
		stop := show("node-2", file(x.token))
		eventually(t, 5*time.Second, name+" is refused for "+x.why, func() bool { return p.refused(x.why) > before })
		eventually(t, 5*time.Second, name+" is told as "+x.told, func() bool { return told(x.told) })
		if how := p.by("node-2"); how != "" {
			t.Errorf("a token %s attached node-2 by %s", name, how)
		}
		stop()
	}
	if p.by("node-1") != "review" {
		t.Error("the honest node proxy is not attached any more")
	}

	// A pod that is gone proves nothing, at the API server's word and without.
	gone := c.token(t, second, "isthmus-gateway")
	stop := show("node-2", file(gone))
	eventually(t, 5*time.Second, "node-2 is attached", func() bool { return p.by("node-2") == "review" })
	if err := c.CoreV1().Pods(system).Delete(t.Context(), second.Name, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	took = eventually(t, 5*time.Second, "node-2's stream ends with its pod", func() bool { return p.by("node-2") == "" })
	t.Logf("pod gone → stream ended: %v", took.Round(time.Millisecond))
	before := p.refused("pod")
	eventually(t, 5*time.Second, "its token is refused", func() bool { return p.refused("pod") > before })
	stop()

	// Without the API server: a token that was seen, one that was not, and a gateway that
	// is started meanwhile.
	unseen := c.token(t, first, "isthmus-gateway")
	c.server.Process.Kill()
	c.server.Wait()
	done()
	eventually(t, 5*time.Second, "node-1 is gone", func() bool { return p.by("node-1") == "" })
	done = show("node-1", path)
	took = eventually(t, 5*time.Second, "a token that was seen attaches without the API server", func() bool { return p.by("node-1") != "" })
	t.Logf("attached without the API server by %s after %v", p.by("node-1"), took.Round(time.Millisecond))
	done()
	eventually(t, 5*time.Second, "node-1 is gone", func() bool { return p.by("node-1") == "" })
	done = show("node-1", file(unseen))
	took = eventually(t, 5*time.Second, "a token that was not seen attaches by the cached keys", func() bool { return p.by("node-1") == "keys" })
	t.Logf("attached by the cached keys after %v", took.Round(time.Millisecond))

	p.gateway.Stop(t)
	p.gateway = p.start()
	took = eventually(t, 10*time.Second, "a gateway that starts without the API server takes the token by the kept keys", func() bool { return p.by("node-1") == "keys" })
	t.Logf("attached to a restarted gateway after %v", took.Round(time.Millisecond))
	before = p.refused("node")
	stop = show("node-2", file(unseen))
	eventually(t, 5*time.Second, "node-1's token does not speak for node-2 there", func() bool { return p.refused("node") > before })
	stop()
	before = p.refused("pod")
	stop = show("node-2", file(gone))
	eventually(t, 5*time.Second, "that of a pod that has gone is believed until the pods are known", func() bool { return p.by("node-2") == "keys" })

	c.server = c.serve()
	c.await(t)
	eventually(t, 90*time.Second, "and ends when they are", func() bool { return p.by("node-2") == "" && p.refused("pod") > before })
	stop()
	eventually(t, 90*time.Second, "the honest one is reviewed again", func() bool {
		return p.by("node-1") != ""
	})
	done()
}

// tokenKey is the key that the API server signs tokens with.
func (c *cluster) tokenKey(t *testing.T) any {
	t.Helper()
	b, err := os.ReadFile(c.at("sa.key"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
