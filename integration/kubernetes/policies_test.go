package kubernetes

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// istio is a client for the objects of an API server whatever their kinds.
type istio struct {
	dynamic.Interface
	t *testing.T
}

func (s *side) istio(t *testing.T) istio {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	return istio{client, t}
}

// define installs the definitions of both kinds of policies, which take any spec.
func (i istio) define() {
	i.t.Helper()
	for kind, plural := range map[string]string{"AuthorizationPolicy": "authorizationpolicies", "PeerAuthentication": "peerauthentications"} {
		o := i.read(fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[2]s.security.istio.io}, spec: {group: security.istio.io, scope: Namespaced, names: {kind: %[1]s, listKind: %[1]sList, plural: %[2]s, singular: %[3]s},
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`, kind, plural, strings.ToLower(kind)))
		if _, err := i.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).Create(i.t.Context(), o, metav1.CreateOptions{}); err != nil {
			i.t.Fatal(err)
		}
		eventually(i.t, 30*time.Second, plural+" are served", func() bool {
			_, err := i.Resource(security(plural)).Namespace("demo").List(i.t.Context(), metav1.ListOptions{})
			return err == nil
		})
	}
}

func security(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "security.istio.io", Version: "v1", Resource: resource}
}

func (i istio) read(text string) *unstructured.Unstructured {
	i.t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		i.t.Fatal(err)
	}
	return o
}

// apply makes the policy be as text has it.
func (i istio) apply(text string) {
	i.t.Helper()
	o := i.read("apiVersion: security.istio.io/v1\n" + text)
	resource := security(map[string]string{"AuthorizationPolicy": "authorizationpolicies", "PeerAuthentication": "peerauthentications"}[o.GetKind()])
	if _, err := i.Resource(resource).Namespace(o.GetNamespace()).Apply(i.t.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: "kubectl", Force: true}); err != nil {
		i.t.Fatal(err)
	}
}

// Policies of a cluster decide at its node proxies about calls of another cluster: as soon as their
// definitions are installed, and whatever becomes of them, of pods and of processes.
func TestPoliciesOfAClusterDecideAboutCallsOfAnother(t *testing.T) {
	s := openShop(t, 2, 2, "", 8080)
	at := s.west.istio(t)
	allowed := func(p *demoPod) bool { return p.call(hello).err == nil }
	becomes := func(what string, limit time.Duration, is bool) {
		t.Helper()
		took := eventually(t, limit, what, func() bool { // at both pods, whoever tells their node proxies
			for range 20 {
				if allowed(s.client) != is {
					return false
				}
			}
			return true
		})
		t.Logf("%s after %v", what, took.Round(time.Millisecond))
	}
	const policy = `
kind: AuthorizationPolicy
metadata: {name: no-shop, namespace: demo}
spec: {action: DENY, %srules: [{from: [{source: {principals: [cluster.local/ns/demo/sa/shop]}}]}]}
`
	at.define()
	at.apply(fmt.Sprintf(policy, ""))
	becomes("the kinds are installed, and a policy denies", 30*time.Second, false)
	denied := 0
	for _, n := range s.west.nodes {
		if log := s.log(t, n.name); strings.Contains(log, `"policy":"AuthorizationPolicy demo/no-shop"`) && strings.Contains(log, `"result":"denied"`) {
			denied++
		}
	}
	if denied == 0 {
		t.Error("no node proxy of west has denied a call by that policy")
	}
	for _, host := range []string{s.west.nodes[0].name, s.west.nodes[1].name} {
		cmd := exec.Command(filepath.Join(s.bin, "isthmus"), "explain", "spiffe://cluster.local/ns/demo/sa/shop", hello, "--admin", adminAddress)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		s.must(s.In(host, cmd.Start))
		cmd.Wait()
		if !strings.Contains(out.String(), "denied by AuthorizationPolicy demo/no-shop, rules[0]") {
			t.Errorf("explain at %s does not name the policy:\n%s", host, &out)
		}
	}
	for _, host := range []string{s.client.node.name, s.west.nodes[0].name, s.west.nodes[1].name, s.east.gateways[0].Host, s.west.gateways[0].Host, s.west.gateways[1].Host} {
		if log := s.log(t, host); strings.Contains(log, `"edge":"ejected"`) {
			t.Errorf("%s: a policy moves somebody's health", host)
		}
	}

	at.apply(fmt.Sprintf(policy, "selector: {matchLabels: {tier: closed}}, "))
	becomes("a selector selects no pod", 10*time.Second, true)
	for _, p := range s.servers {
		if _, err := s.west.CoreV1().Pods("demo").Patch(t.Context(), p.name, types.MergePatchType, []byte(`{"metadata":{"labels":{"tier":"closed"}}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	becomes("the pods have that label", 10*time.Second, false)

	// The gateways are killed and come back; the node proxies are, from their caches.
	for _, n := range s.west.nodes {
		s.must(n.proxy.Stop(os.Interrupt, time.Minute))
		s.must(s.Start(n.proxy, s.Ready(n.name, adminAddress)))
	}
	for range 50 {
		if allowed(s.client) {
			t.Fatal("a node proxy that starts allows what it did not before")
		}
	}
	for _, g := range s.west.gateways {
		s.must(g.Stop(os.Kill, time.Minute))
		s.must(s.Start(g, s.Ready(g.Host, adminAddress)))
		for range 20 {
			if allowed(s.client) {
				t.Fatal("a gateway that was killed takes a policy away")
			}
		}
	}

	at.apply(`
kind: AuthorizationPolicy
metadata: {name: all, namespace: istio-system}
spec: {rules: [{from: [{source: {principals: ["*/sa/shop"]}}]}]}
`)
	if err := at.Resource(security("authorizationpolicies")).Namespace("demo").Delete(t.Context(), "no-shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("the policy is deleted, and another one of the root namespace allows", 10*time.Second, true)
	at.apply(`
kind: PeerAuthentication
metadata: {name: strict, namespace: demo}
spec: {mtls: {mode: STRICT}}
`)
	at.apply(`
kind: AuthorizationPolicy
metadata: {name: all, namespace: istio-system}
spec: {rules: [{to: [{operation: {methods: [GET]}}]}]}
`)
	becomes("it speaks of HTTP", 10*time.Second, false)
	if err := at.Resource(security("authorizationpolicies")).Namespace("istio-system").Delete(t.Context(), "all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("nothing but STRICT is left", 10*time.Second, true)
}
