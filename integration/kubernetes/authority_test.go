package kubernetes

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/isthmus-mesh/isthmus/controller"
	"github.com/isthmus-mesh/isthmus/identity"
)

// bound writes the token of a pod of isthmus-system that it makes, and returns its path.
func (o *office) bound(account, pod, node string) string {
	t := o.t
	t.Helper()
	ctx := t.Context()
	if _, err := o.CoreV1().ServiceAccounts("isthmus-system").Get(ctx, account, metav1.GetOptions{}); err != nil {
		if _, err := o.CoreV1().ServiceAccounts("isthmus-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	made, err := o.CoreV1().Pods("isthmus-system").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "x"}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.CoreV1().ServiceAccounts("isthmus-system").CreateToken(ctx, account, &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{Audiences: []string{"istio-ca"},
		BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod, UID: made.UID}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(o.Dir(), pod+".token")
	if err := replace(file, r.Status.Token); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestEachControllerIssuesCertificates asks the leader and the other one, as a node proxy,
// for what runs on its node and for what does not.
func TestEachControllerIssuesCertificates(t *testing.T) {
	o := openOffice(t)
	o.open()
	o.cluster.apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "demo"}})
	here, there := pod("here", "here-1"), pod("there", "there-1")
	there.Spec.NodeName = "node-2"
	o.cluster.apply(t, here, there)
	token := o.bound("nodeproxy", "nodeproxy-1", "node-1")
	for _, name := range []string{"controller-1", "controller-2"} {
		at := netip.AddrPortFrom(o.Addr(), 15012)
		o.hire(name, func(c *controller.Config) { c.CA.Address = at })
		ids, err := identity.Config{Source: "istio", Address: at.String(), Root: filepath.Join(o.Dir(), "ca", "ca.pem"), ServerName: "isthmus-controller.isthmus-system.svc", Token: token, TTL: time.Hour}.Open(zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		get := func(account string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			svid, err := ids.Get(ctx, o.ID(account))
			if err == nil && svid.ID != o.ID(account) {
				t.Errorf("%s: asked for %s, got %s", name, account, svid.ID)
			}
			return err
		}
		var last error
		defer func() {
			if t.Failed() {
				t.Logf("%s: %v", name, last)
			}
		}()
		took := eventually(t, 30*time.Second, name+" gives a node proxy the certificate of a pod on its node", func() bool { last = get("demo/here"); return last == nil })
		if err := get("isthmus-system/nodeproxy"); err != nil {
			t.Errorf("%s gives a node proxy no certificate of its own: %v", name, err)
		}
		for _, account := range []string{"demo/there", "isthmus-system/controller", "isthmus-system/gateway"} {
			if err := get(account); err == nil {
				t.Errorf("%s gives a node proxy a certificate of %s", name, account)
			} else if !strings.Contains(err.Error(), "no live pod") && !strings.Contains(err.Error(), "nobody may have") {
				t.Errorf("%s refuses %s: %v", name, account, err)
			}
		}
		t.Logf("%s: first certificate after %v; leader is %s", name, took.Round(time.Millisecond), o.leader())
	}
}
