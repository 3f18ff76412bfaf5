package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// strictness are the definitions of Istio's policies, and mutual TLS for all pods of demo. outsider is a pod that is
// not of the mesh.
const (
	definition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: PLURAL.security.istio.io}
spec:
  group: security.istio.io
  scope: Namespaced
  names: {kind: KIND, listKind: KINDList, plural: PLURAL, singular: SINGULAR}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
`
	strictness = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mtls, namespace: demo}
spec: {mtls: {mode: STRICT}}
`
	outsider = `apiVersion: v1
kind: Pod
metadata: {name: outsider, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "docker.io/curlimages/curl:8.11.1", command: [sleep, "100000"]}]
`
)

// everything has all connections of pods captured, under STRICT: the kubelet's probes pass, by ptp and by a bridge, whoever
// is not of the mesh is refused, and pods call each other by their addresses with mutual TLS. Afterwards the scope is
// as before.
func (w *realWorld) everything(t *testing.T) {
	policies := ""
	for kind, plural := range map[string]string{"AuthorizationPolicy": "authorizationpolicies", "PeerAuthentication": "peerauthentications"} {
		policies += strings.NewReplacer("PLURAL", plural, "KIND", kind, "SINGULAR", strings.ToLower(kind)).Replace(definition)
	}
	for name, text := range map[string]string{"definitions": policies, "strict": strictness, "outsider": outsider} {
		w.must(os.WriteFile(filepath.Join(w.operator.dir, name+".yaml"), []byte(text), 0o600))
	}
	for network := range w.nodes {
		w.must(os.WriteFile(filepath.Join(w.operator.dir, network+"-apps.yaml"), []byte(strings.ReplaceAll(apps, "NETWORK", network)), 0o600))
		w.does(t, "kubectl --context "+network+" apply -f "+network+"-apps.yaml -f outsider.yaml -f definitions.yaml")
	}
	w.captures(t, "all")
	for network := range w.nodes {
		w.wait(t, network, "wait --for condition=Established crd/peerauthentications.security.istio.io", time.Minute)
		w.wait(t, network, "--namespace demo rollout status deployment/echo-"+network, 2*time.Minute)
		w.wait(t, network, "--namespace default wait --for condition=Ready pod/outsider", 2*time.Minute)
		w.wait(t, network, "--namespace demo wait --for condition=Ready pod/caller", 2*time.Minute)
	}
	for network, n := range w.nodes {
		if !w.gets(t, network, "default", "outsider", w.echoes(t, n)) {
			t.Errorf("on %s a pod outside the mesh is not answered without policies", network)
		}
		w.does(t, "kubectl --context "+network+" apply -f strict.yaml")
		eventually(t, time.Minute, "STRICT holds on "+network, func() bool {
			return !w.gets(t, network, "default", "outsider", w.echoes(t, n))
		})
		// Pods are made anew, and Ready by probes alone, which reach the application without the node proxy.
		since := time.Now()
		w.does(t, "kubectl --context "+network+" --namespace demo rollout restart deployment/echo-"+network)
		w.wait(t, network, "--namespace demo rollout status deployment/echo-"+network, 2*time.Minute)
		for _, l := range n.accessLog(t, since, "inbound") {
			if l["plain"] == true && l["target"] == 8080.0 {
				t.Errorf("on %s a probe came to the node proxy: %v", network, l)
			}
		}
		if w.gets(t, network, "default", "outsider", w.echoes(t, n)) {
			t.Errorf("on %s a pod outside the mesh is answered under STRICT", network)
		}
	}
	for network, n := range w.nodes {
		w.answered(t, network, echo(network), time.Minute)
		since := time.Now()
		w.answered(t, network, w.echoes(t, n), time.Minute)
		eventually(t, 20*time.Second, "a call by a pod's address proves who calls on "+network, func() bool {
			time.Sleep(200 * time.Millisecond)
			for _, l := range n.accessLog(t, since, "inbound") {
				if strings.HasSuffix(fmt.Sprint(l["peer"]), "/ns/demo/sa/caller") && l["plain"] == nil {
					return true
				}
			}
			return false
		})
		w.does(t, "kubectl --context "+network+" delete -f strict.yaml")
		eventually(t, time.Minute, "without STRICT others are answered on "+network, func() bool {
			return w.gets(t, network, "default", "outsider", w.echoes(t, n))
		})
		w.does(t, "kubectl --context "+network+" delete -f outsider.yaml")
	}
	w.captures(t, "vips")
}

// captures has node proxies capture by another scope.
func (w *realWorld) captures(t *testing.T, scope string) {
	for network := range w.nodes {
		w.does(t, "helm --kube-context "+network+" upgrade isthmus helm/isthmus --namespace isthmus-system --reuse-values --set nodeProxy.capture.scope="+scope)
	}
	for network := range w.nodes {
		w.settles(t, network)
	}
}

// echoes is the URL of one pod of echo, by its own address.
func (w *realWorld) echoes(t *testing.T, n *realNode) string {
	for _, p := range n.list(t, "demo", "echo-") {
		if p.DeletionTimestamp == nil && p.Status.PodIP != "" {
			return "http://" + p.Status.PodIP + ":8080/"
		}
	}
	t.Fatalf("%s has no pod of echo", n.name)
	return ""
}

// gets asks for a URL in a pod, and reports whether it is answered.
func (w *realWorld) gets(t *testing.T, network, namespace, pod, url string) bool {
	t.Helper()
	out, code := w.shell(t, fmt.Sprintf("kubectl --context %s --namespace %s exec %s -- curl --silent --show-error --max-time 3 %s", network, namespace, pod, url))
	if code != 0 && !strings.Contains(out, "curl: (") {
		t.Fatalf("curl in pod %s of %s: %s", pod, network, out)
	}
	return code == 0
}
