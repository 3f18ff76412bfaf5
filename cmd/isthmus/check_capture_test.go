package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/internal/answer"
)

// capturing are the objects of a cluster whose node proxies are configured with a scope.
func capturing(t *testing.T, scope string, more map[string]string) map[string]string {
	t.Helper()
	return with(initialised(t), charted("west", "west.local"), map[string]string{
		"configmap-isthmus-nodeproxy": `{"data":{"nodeproxy.yaml":"network: west\ntrustDomain: west.local\ncapture: {scope: ` + scope + `}\n"}}`}, more)
}

// Pods in the network of their node are named where they would be in the mesh otherwise.
func TestCheckNamesPodsThatAreLeftOut(t *testing.T) {
	pod := func(namespace, name, labels, status string, host bool) string {
		return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"labels":{%s}},"spec":{"hostNetwork":%v},"status":{"phase":%q}}`, namespace, name, labels, host, status)
	}
	const ambient, none = `"istio.io/dataplane-mode":"ambient"`, `"istio.io/dataplane-mode":"none"`
	pods := `{"items":[` + strings.Join([]string{
		pod("demo", "by-namespace", "", "Running", true), pod("other", "by-label", ambient, "Running", true),
		pod("demo", "has-said-so", none, "Running", true), pod("other", "not-meshed", "", "Running", true), pod("demo", "on-pod-network", "", "Running", false), pod("demo", "is-over", "", "Succeeded", true)}, ",") + `]}`
	namespaces := `{"items":[{"metadata":{"name":"demo"}}]}`
	forbidden := func(resource string) string {
		return `Error from server (Forbidden): ` + resource + ` is forbidden: User "ann" cannot list resource "` + resource + `" in API group "" at the cluster scope`
	}
	for name, x := range map[string]struct {
		scope, pods, namespaces string
		want                    []string
		lines                   int
	}{
		"some":          {"vips", pods, namespaces, []string{"! ISTH-117", "      pod demo/by-namespace\n", "      pod other/by-label\n", "istio.io/dataplane-mode: none"}, 4},
		"none":          {"all", `{"items":[]}`, namespaces, []string{"✓ ISTH-117"}, 1},
		"not captured":  {"off", pods, namespaces, nil, 0},
		"no right":      {"vips", forbidden("pods"), namespaces, nil, 0},
		"another right": {"vips", pods, forbidden("namespaces"), nil, 0},
	} {
		out := asPlain(t, fakeCluster(t, capturing(t, x.scope, map[string]string{"all-pods": x.pods, "all-namespaces": x.namespaces})))
		said := one(out, "ISTH-117")
		wantIn(t, said, x.want...)
		if n := strings.Count(said, "\n"); n != x.lines && (n-1 != x.lines || x.lines == 0) { // the sum follows the last one
			t.Errorf("%s: %d lines, want %d:\n%s", name, n, x.lines, said)
		}
		if strings.Contains(x.pods+x.namespaces, "Forbidden") {
			wantIn(t, out, "! ISTH-116", `"ann" may not list`, "not checked: ISTH-117")
		}
	}
}

// An API server that cannot select by hostNetwork is asked for all pods.
func TestCheckOfPodsOfAnOlderAPIServer(t *testing.T) {
	program := fakeCluster(t, capturing(t, "vips", map[string]string{"all-namespaces": `{"items":[]}`,
		"all-pods": `{"items":[{"metadata":{"namespace":"demo","name":"shop","labels":{"istio.io/dataplane-mode":"ambient"}},"spec":{"hostNetwork":true}}]}`}))
	instead(t, program, `case "$*" in *spec.hostNetwork*) echo 'Error from server (BadRequest): Unable to find "/v1, Resource=pods" that match label selector "", field selector "spec.hostNetwork=true": field label not supported: spec.hostNetwork' >&2; exit 1;; esac`)
	wantIn(t, one(asPlain(t, program), "! ISTH-117"), "pod demo/shop")
}

// instead has a program do something before all else.
func instead(t *testing.T, program, script string) {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte(strings.Replace(string(b), "#!/bin/sh\n", "#!/bin/sh\n"+script+"\n", 1)), 0o700); err != nil {
		t.Fatal(err)
	}
}

// Each node proxy is asked itself whether it captures; those that are not ready, and those that cannot be asked, are said.
// The product of Cilium's settings: only its socket load balancer in the pods' own sockets is
// named, and only where pods are captured.
func TestCheckDetectsCiliumsSocketLoadBalancer(t *testing.T) {
	for _, lb := range []string{"", "true", "false"} {
		for _, kpr := range []string{"", "true", "strict", "false", "partial"} {
			for _, host := range []string{"", "true", "false"} {
				found := rewritesSockets(map[string]string{"bpf-lb-sock": lb, "kube-proxy-replacement": kpr, "bpf-lb-sock-hostns-only": host})
				if want := host != "true" && (lb == "true" || kpr == "true" || kpr == "strict"); want != (found != "") {
					t.Errorf("bpf-lb-sock %q, kube-proxy-replacement %q, hostns-only %q: %q; want found: %t", lb, kpr, host, found, want)
				}
			}
		}
	}
	for name, x := range map[string]struct {
		scope, config string
		want          string
	}{
		"rewrites":     {"vips", `{"data":{"bpf-lb-sock":"true"}}`, "! ISTH-119"},
		"host alone":   {"vips", `{"data":{"bpf-lb-sock":"true","bpf-lb-sock-hostns-only":"true"}}`, "✓ ISTH-119"},
		"forbidden":    {"vips", `Error from server (Forbidden): configmaps "cilium-config" is forbidden: User "ann" cannot get resource "configmaps" in API group "" in the namespace "kube-system"`, "ISTH-116"},
		"not captured": {"off", `{"data":{"bpf-lb-sock":"true"}}`, ""},
	} {
		said := asPlain(t, fakeCluster(t, capturing(t, x.scope, map[string]string{"configmap-cilium-config": x.config})))
		if x.want != "" {
			wantIn(t, said, x.want)
		} else if strings.Contains(said, "ISTH-119") {
			t.Errorf("%s: it says\n%s", name, said)
		}
	}
}

func TestCheckOfNodesThatCannotCapture(t *testing.T) {
	says := map[string]answer.Status{
		"np-1": {Captured: new(3)},
		"np-2": {Captured: new(0), Uncaptured: []string{"pod demo/shop is not captured: set nftables rules: this kernel needs nf_tables"}},
		"np-3": {},
	}
	ready := func(name, node, status string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"nodeName":%q},"status":{"conditions":[{"type":"Ready","status":%q}]}}`, name, node, status)
	}
	for name, x := range map[string]struct {
		scope string
		pods  []string
		want  []string
		not   []string
	}{
		"all do":           {"vips", []string{ready("np-1", "n-1", "True")}, []string{"✓ ISTH-118"}, []string{"n-1"}},
		"one cannot":       {"all", []string{ready("np-1", "n-1", "True"), ready("np-2", "n-2", "True")}, []string{"✗ ISTH-118", "node n-2 (np-2): pod demo/shop is not captured: set nftables rules: this kernel needs nf_tables\n", "docs/rights.md"}, []string{"n-1"}},
		"one is without":   {"vips", []string{ready("np-1", "n-1", "True"), ready("np-3", "n-3", "True")}, []string{"✗ ISTH-118", "node n-3 (np-3): it captures nothing"}, []string{"n-1"}},
		"one is not ready": {"vips", []string{ready("np-1", "n-1", "True"), ready("np-2", "n-2", "False")}, []string{"! ISTH-118", "node n-2 (np-2): its node proxy is not ready"}, []string{"n-1", "nftables"}},
		"its next one is":  {"vips", []string{ready("np-1", "n-1", "True"), ready("np-2", "n-1", "False")}, []string{"✓ ISTH-118"}, []string{"np-2"}},
		"cannot be asked":  {"vips", []string{ready("np-1", "n-1", "True"), ready("np-4", "n-4", "True")}, []string{"! ISTH-118", "node n-4 (np-4) cannot be asked: ", "unable to forward"}, []string{"n-1"}},
		"nobody captures":  {"off", []string{ready("np-2", "n-2", "True")}, nil, []string{"ISTH-118"}},
		"no node proxy":    {"vips", nil, nil, []string{"ISTH-118"}},
	} {
		program := fakeCluster(t, capturing(t, x.scope, map[string]string{"pods": `{"items":[` + strings.Join(x.pods, ",") + `]}`}))
		var script strings.Builder
		for pod, status := range says {
			status.Process, status.Network, status.Now = "node proxy "+pod, "west", time.Now()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { json.NewEncoder(w).Encode(status) }))
			defer s.Close()
			fmt.Fprintf(&script, "case $1-$2 in port-forward-pod/%s) echo 'Forwarding from %s -> 15000'; exec sleep 60;; esac\n", pod, s.Listener.Addr())
		}
		instead(t, program, script.String()+`case $1 in port-forward) echo "error: unable to forward" >&2; exit 1;; esac`)
		said := one(asPlain(t, program), "ISTH-118")
		wantIn(t, said, x.want...)
		for _, not := range x.not {
			if strings.Contains(said, not) {
				t.Errorf("%s: it says %q:\n%s", name, not, said)
			}
		}
	}
}
