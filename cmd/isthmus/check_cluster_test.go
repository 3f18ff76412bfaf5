package main

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// fakeCluster is a kubectl that answers from files, of an object (kind-name) or a list (kind);
// an answer that begins with "Error" is an error. It lets nobody forward a port, and every
// service account has its rights.
func fakeCluster(t *testing.T, objects map[string]string) (program string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range objects {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program = filepath.Join(dir, "kubectl")
	script := `#!/bin/sh
cd ` + dir + `
case $1 in
get) f=$2-$3; case $3 in --*) f=$2;; esac; case "$*" in *--all-namespaces*) f=all-$2;; esac;;
logs) f=logs-$2;;
create) exec sed 's/.*/{"status":{"allowed":true}}/';;
*) echo "error: not in this test" >&2; exit 1;;
esac
[ -f $f ] || exit 0
case "$(cat $f)" in Error*) cat $f >&2; exit 1;; esac
cat $f
`
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

// initialised are the objects that init makes.
func initialised(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for d := yaml.NewDecoder(strings.NewReader(printed(t, "--network", "west", "--trust-domain", "west.local", "--dir", filepath.Join(t.TempDir(), "west")))); ; {
		var o map[string]any
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out[strings.ToLower(o["kind"].(string))+"-"+o["metadata"].(map[string]any)["name"].(string)] = string(b)
	}
}

// charted are objects of the chart, with everything ready.
func charted(network, domain string) map[string]string {
	ready := `{"spec":{"replicas":2,"template":{"spec":{"serviceAccountName":"gateway"}}},"status":{"readyReplicas":2,"updatedReplicas":2}}`
	config := func(kind string) string {
		return `{"metadata":{"annotations":{"meta.helm.sh/release-name":"mesh"}},"data":{"` + kind + `.yaml":"network: ` + network + `\ntrustDomain: ` + domain + `\n"}}`
	}
	return map[string]string{
		"configmap-isthmus-gateway": config("gateway"), "configmap-isthmus-controller": config("controller"),
		"deployment-isthmus-gateway": ready, "deployment-isthmus-controller": ready,
		"service-isthmus-gateway": `{"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"203.0.113.7"}]}}}`,
	}
}

// with are objects of several kinds of installation, the later ones over the earlier; what is
// empty is not there.
func with(all ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, m := range all {
		maps.Copy(out, m)
	}
	maps.DeleteFunc(out, func(_, text string) bool { return text == "" })
	return out
}

// one is what check says of a code, with its lines.
func one(out, code string) string {
	var b strings.Builder
	in := false
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "      ") {
			in = strings.Contains(line, code)
		}
		if in {
			b.WriteString(line)
		}
	}
	return b.String()
}

// What is half installed has one remedy, that of what has to be done first: the rest follows from it, or
// is a step of its own. Every command works as it is printed.
func TestCheckOrdersByCause(t *testing.T) {
	made, chart := initialised(t), charted("west", "west.local")
	kinds := map[string]string{"all-serviceexports.multicluster.x-k8s.io": `{"items":[]}`}
	none := map[string]string{"all-serviceexports.multicluster.x-k8s.io": `Error: the server doesn't have a resource type "serviceexports"`}
	waiting := map[string]string{
		"deployment-isthmus-gateway": `{"spec":{"replicas":1},"status":{"conditions":[{"type":"Progressing","status":"False","reason":"ProgressDeadlineExceeded"}]}}`,
		"pods":                       `{"items":[{"metadata":{"name":"isthmus-gateway-1"},"spec":{"volumes":[{"secret":{"secretName":"isthmus-network-key"}}]},"status":{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"True"}],"containerStatuses":[{"name":"gateway","state":{"waiting":{"reason":"ContainerCreating"}}}]}}]}`,
	}
	program := ""
	for name, x := range map[string]struct {
		objects  map[string]string
		remedies map[string]string // by code
		follows  map[string]string
		not      []string
	}{
		"nothing": {none, map[string]string{"✗ ISTH-101": "isthmus init --network NETWORK --trust-domain DOMAIN --apply --context w", "✗ ISTH-104": "helm --kube-context w --namespace isthmus-system install isthmus helm/isthmus"},
			map[string]string{"ISTH-102": "ISTH-101", "ISTH-103": "ISTH-101", "ISTH-107": "ISTH-104"}, []string{"ISTH-100", "ISTH-114", "ISTH-115"}},
		"init, no chart": {made, map[string]string{"✗ ISTH-104": "--set network=west,trustDomain=west.local"}, map[string]string{"ISTH-107": "ISTH-104"}, []string{"✗ ISTH-101", "ISTH-114"}},
		"chart, no init": {with(chart, kinds, waiting), map[string]string{"✗ ISTH-101": "isthmus init --network west --trust-domain west.local --apply --context w"},
			map[string]string{"ISTH-102": "ISTH-101", "ISTH-103": "ISTH-101", "ISTH-104": "ISTH-101", "ISTH-112": "ISTH-101"}, nil},
		"controller alone": {with(made, chart, kinds, map[string]string{"deployment-isthmus-gateway": "", "service-isthmus-gateway": ""}),
			map[string]string{"✗ ISTH-104": "helm --kube-context w --namespace isthmus-system upgrade mesh helm/isthmus --reuse-values"}, map[string]string{"ISTH-107": "ISTH-104"}, []string{"✗ ISTH-101"}},
		"no kinds": {with(made, chart, none),
			map[string]string{"! ISTH-115": "helm --kube-context w --namespace isthmus-system install isthmus-crds helm/isthmus-crds"}, nil, []string{"✗", "ISTH-111"}},
		"a network of another name": {with(made, charted("wset", "west.local"), kinds),
			map[string]string{"✗ ISTH-114": "helm --kube-context w --namespace isthmus-system upgrade mesh helm/isthmus --reuse-values --set network=west\n"}, nil, []string{"trustDomain is"}},
		"another trust domain": {with(made, charted("west", "cluster.local"), kinds),
			map[string]string{"✗ ISTH-114": `ConfigMap isthmus-controller: trustDomain is "cluster.local", and "west.local" on the link card`}, nil, []string{"network is"}},
		"well": {with(made, chart, kinds), map[string]string{"✓ ISTH-114": "", "✓ ISTH-116": ""}, nil, []string{"✗", "! ISTH-11"}},
	} {
		program = fakeCluster(t, x.objects)
		_, out, errs := isthmus(t, "check", "--contexts", "w", "--kubectl", program)
		out = strings.ReplaceAll(out, " --kubectl "+program, "")
		body, _, _ := strings.Cut(out, " ✓, ")
		for code, want := range x.remedies {
			if text := one(body, code); text == "" || !strings.Contains(text, want) || strings.Contains(text, "follows") {
				t.Errorf("%s: of %s it says %q, want %q\n%s%s", name, code, text, want, out, errs)
			}
		}
		for code, cause := range x.follows {
			if text := one(body, code); !strings.Contains(text, "↳ follows from "+cause+"\n") || strings.Contains(text, "→") {
				t.Errorf("%s: of %s it says %q, want that it follows from %s and no remedy\n%s", name, code, text, cause, out)
			} else if strings.Index(body, cause) > strings.Index(body, code) {
				t.Errorf("%s: %s stands before %s:\n%s", name, code, cause, out)
			}
		}
		if n := strings.Count(body, "↳"); n != len(x.follows) {
			t.Errorf("%s: %d follow from others, want %d:\n%s", name, n, len(x.follows), out)
		}
		for _, s := range x.not {
			if strings.Contains(body, s) {
				t.Errorf("%s: it says %q:\n%s", name, s, out)
			}
		}
	}
}

// A namespace that is not that of the mesh is named, with the one that is, and nothing else is said of it.
func TestCheckOfAnotherNamespace(t *testing.T) {
	program := fakeCluster(t, map[string]string{"all-deployments.apps": `{"items":[{"metadata":{"namespace":"mesh"}}]}`})
	code, out, errs := isthmus(t, "check", "--contexts", "a b", "--kubectl", program, "--kubeconfig", "k.yaml")
	if code != exitFinding || strings.Count(out, "✗ ISTH") != 1 || errs != "" {
		t.Errorf("exits with %d:\n%s%s", code, out, errs)
	}
	wantIn(t, out, "✗ ISTH-100", "namespace isthmus-system has neither gateways nor a link card; namespace mesh has", "→ isthmus check --contexts 'a b' --kubeconfig k.yaml --namespace mesh --kubectl "+program)
	// Gateways that are here, whatever they lack and wherever others are, are those that are meant.
	program = fakeCluster(t, map[string]string{"all-deployments.apps": `{"items":[{"metadata":{"namespace":"isthmus-system"}},{"metadata":{"namespace":"mesh"}}]}`})
	if _, out, _ := isthmus(t, "check", "--contexts", "w", "--kubectl", program); strings.Contains(out, "ISTH-100") || !strings.Contains(out, "✗ ISTH-101") {
		t.Errorf("with gateways here it says\n%s", out)
	}
}

// The namespace of the mesh is known by its link card too, before the chart is there, to check and to link.
func TestALinkCardInAnotherNamespaceIsNamed(t *testing.T) {
	card := initialised(t)["configmap-isthmus-network"]
	elsewhere := `{"items":[` + strings.Replace(card, `"namespace":"isthmus-system"`, `"namespace":"mesh"`, 1) + `]}`
	program := fakeCluster(t, map[string]string{"all-configmaps": elsewhere})
	code, out, errs := isthmus(t, "check", "--contexts", "w", "--kubectl", program)
	if code != exitFinding || strings.Count(out, "✗ ISTH") != 1 || errs != "" {
		t.Errorf("exits with %d:\n%s%s", code, out, errs)
	}
	wantIn(t, out, "✗ ISTH-100", "namespace mesh has", "→ isthmus check --contexts w --namespace mesh --kubectl "+program)
	for _, line := range []string{"link --contexts v,w --apply", "unlink --contexts v,w --apply", "link card --context v"} {
		code, out, errs := isthmus(t, append(strings.Fields(line), "--kubectl", program)...)
		if code != exitStart || out != "" || strings.Contains(errs, "isthmus init") {
			t.Errorf("%s exits with %d:\n%s%s", line, code, out, errs)
		}
		wantIn(t, errs, `context "v" has no ConfigMap isthmus-network in namespace isthmus-system, and one of network "west" in namespace mesh: name that with --namespace mesh`)
	}
	// Without one, or a right to look for it, the command that makes one is for the namespace that was asked.
	for _, more := range []map[string]string{nil, {"all-configmaps": "Error from server (Forbidden): configmaps is forbidden"}} {
		_, _, errs := isthmus(t, "link", "card", "--context", "v", "--namespace", "other", "--kubectl", fakeCluster(t, more))
		wantIn(t, errs, "run `isthmus init --network NAME --trust-domain DOMAIN --apply --context v --namespace other")
	}
}

// A cluster that is named twice is no pair.
func TestCheckOfOneClusterByTwoNames(t *testing.T) {
	program := fakeCluster(t, initialised(t))
	for contexts, want := range map[string]string{"w,w": `"w" is there twice`, "w,": "an entry is empty"} {
		if code, _, errs := isthmus(t, "check", "--contexts", contexts, "--kubectl", program); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exits with %d: %s, want %q", contexts, code, errs, want)
		}
	}
	_, out, _ := isthmus(t, "check", "--contexts", "w,v", "--kubectl", program)
	wantIn(t, out, "✗ ISTH-201", `both are network "west" with the same key: the contexts are of one cluster`, "→ name each cluster once")
}

// Who may not read something is told which right is missing and what was not checked for it; the
// rest is checked.
func TestCheckGoesOnWithoutARight(t *testing.T) {
	forbidden := func(resource, name, group string) string {
		return `Error from server (Forbidden): ` + resource + ` "` + name + `" is forbidden: User "ann" cannot get resource "` + resource + `" in API group "` + group + `" in the namespace "isthmus-system"`
	}
	all := with(initialised(t), charted("west", "west.local"), map[string]string{"all-serviceexports.multicluster.x-k8s.io": `{"items":[]}`})
	_, whole, _ := isthmus(t, "check", "--contexts", "w", "--kubectl", fakeCluster(t, all))
	for object, x := range map[string]struct{ answer, says, lost string }{
		"secret-isthmus-ca":                        {forbidden("secrets", "isthmus-ca", ""), `"ann" may not get secrets in namespace isthmus-system: not checked: ISTH-102`, "ISTH-102"},
		"configmap-isthmus-network":                {forbidden("configmaps", "isthmus-network", ""), "may not get configmaps", "ISTH-101 ISTH-103 ISTH-114"},
		"configmap-isthmus-root":                   {forbidden("configmaps", "isthmus-root", ""), "not checked: ISTH-103", "ISTH-103"},
		"configmap-isthmus-networks":               {forbidden("configmaps", "isthmus-networks", ""), "what this cluster knows of others", ""},
		"deployment-isthmus-controller":            {forbidden("deployments", "isthmus-controller", "apps"), "may not get deployments in namespace isthmus-system: not checked: ISTH-105", "ISTH-105"},
		"daemonset-isthmus-nodeproxy":              {forbidden("daemonsets", "isthmus-nodeproxy", "apps"), "not checked: ISTH-106", ""},
		"service-isthmus-gateway":                  {forbidden("services", "isthmus-gateway", ""), "not checked: ISTH-107", "ISTH-107"},
		"all-events":                               {`Error from server (Forbidden): events is forbidden: User "ann" cannot list resource "events" in API group "" at the cluster scope`, "may not list events in all namespaces: not checked: ISTH-110", "ISTH-110"},
		"all-serviceexports.multicluster.x-k8s.io": {`Error from server (Forbidden): serviceexports.multicluster.x-k8s.io is forbidden: User "ann" cannot list resource "serviceexports" in API group "multicluster.x-k8s.io" at the cluster scope`, "not checked: ISTH-111", "ISTH-111 ISTH-115"},
	} {
		code, out, errs := isthmus(t, "check", "--contexts", "w", "--kubectl", fakeCluster(t, with(all, map[string]string{object: x.answer})))
		if code != exitOK || errs != "" {
			t.Errorf("%s: exits with %d: %s\n%s", object, code, errs, out)
		}
		wantIn(t, one(out, "! ISTH-116"), x.says, "docs/kubernetes/operator.yaml")
		for line := range strings.Lines(whole) {
			if code, _, _ := strings.Cut(strings.TrimSpace(strings.TrimLeft(line, " ✓!✗")), " "); strings.HasPrefix(code, "ISTH-") && !strings.Contains(x.lost, code) && !strings.Contains(out, "✓ "+code) && !strings.Contains(out, "! "+code) {
				t.Errorf("%s: %s is not checked any more:\n%s", object, code, out)
			}
		}
	}
}
