package helm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/isthmus-mesh/isthmus/federation/networkkey/keyfile"
)

// dig follows keys, and indexes of lists, into what was decoded.
func dig(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

func find(t *testing.T, objects []object, kind, name string) object {
	t.Helper()
	for _, o := range objects {
		if o.Kind == kind && o.Metadata.Name == name {
			return o
		}
	}
	t.Fatalf("no %s %s is rendered", kind, name)
	return object{}
}

func TestGatewaysAndControllerMayDoNothingToTheirNode(t *testing.T) {
	for _, set := range cases(t) {
		objects := rendered(t, set)
		for _, o := range objects {
			if o.Kind != "Deployment" {
				continue
			}
			pod := dig(o.all, "spec", "template", "spec")
			container := dig(pod, "containers", 0)
			for path, want := range map[string]any{
				"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
			} {
				if got := dig(pod, "securityContext", path); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %s: securityContext.%s is %v; want %v", set, o.Metadata.Name, path, got, want)
				}
			}
			for path, want := range map[string]any{
				"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": map[string]any{"drop": []any{"ALL"}}, "privileged": nil,
			} {
				if got := dig(container, "securityContext", path); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%s: %s: container's securityContext.%s is %v; want %v", set, o.Metadata.Name, path, got, want)
				}
			}
			for _, key := range []string{"hostNetwork", "hostPID", "hostIPC"} {
				if v := dig(pod, key); v != nil {
					t.Errorf("%s: %s has %s: %v", set, o.Metadata.Name, key, v)
				}
			}
			for _, v := range dig(pod, "volumes").([]any) {
				if dig(v, "hostPath") != nil {
					t.Errorf("%s: %s mounts %v of its node", set, o.Metadata.Name, v)
				}
			}
			for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
				if port := dig(container, probe, "httpGet", "port"); port != 15020 {
					t.Errorf("%s: %s: %s asks port %v; want 15020", set, o.Metadata.Name, probe, port)
				}
			}
		}
		gateway := find(t, objects, "Deployment", "isthmus-gateway")
		grace := dig(gateway.all, "spec", "template", "spec", "terminationGracePeriodSeconds")
		if want := map[string]int{"everything": 790}[set]; want != 0 && grace != want {
			t.Errorf("%s: a gateway has %v s to stop; want lame duck, drain and 10 s: %d", set, grace, want)
		}
	}
}

// A node proxy has no right at the API server and no token of it, and proves itself by
// tokens for two audiences that are of no use there.
func TestNodeProxiesHaveNoRights(t *testing.T) {
	for _, set := range cases(t) {
		objects := rendered(t, set)
		for _, o := range objects {
			switch o.Kind {
			case "ClusterRoleBinding", "RoleBinding":
				if s := fmt.Sprint(o.all["subjects"]); strings.Contains(s, "nodeproxy") {
					t.Errorf("%s: %s gives node proxies rights: %s", set, o.Metadata.Name, s)
				}
			case "Secret":
				t.Errorf("%s: the chart makes Secret %s: keys are made by isthmus init", set, o.Metadata.Name)
			case "ServiceAccount":
				if o.all["automountServiceAccountToken"] != false {
					t.Errorf("%s: account %s mounts its token everywhere", set, o.Metadata.Name)
				}
			}
		}
		if set == "smallest" {
			continue // node proxies are off by default
		}
		proxy := find(t, objects, "DaemonSet", "isthmus-nodeproxy")
		pod := dig(proxy.all, "spec", "template", "spec")
		if dig(pod, "automountServiceAccountToken") != false || dig(pod, "containers", 0, "ports") != nil {
			t.Errorf("%s: node proxies mount a token or declare ports, which keeps two apart", set)
		}
		surge := dig(proxy.all, "spec", "updateStrategy", "rollingUpdate", "maxSurge")
		if host := dig(pod, "hostNetwork") == true; host == (surge == 1) {
			t.Errorf("%s: host network %v and maxSurge %v: two of one node would want the same ports", set, host, surge)
		}
		var audiences []string
		for _, v := range dig(pod, "volumes").([]any) {
			sources, _ := dig(v, "projected", "sources").([]any)
			for _, s := range sources {
				if token := dig(s, "serviceAccountToken"); token != nil {
					audiences = append(audiences, fmt.Sprint(dig(token, "audience")))
				}
			}
		}
		if slices.Sort(audiences); !slices.Equal(audiences, []string{"isthmus-gateway", "istio-ca"}) {
			t.Errorf("%s: node proxies have tokens for %q", set, audiences)
		}
	}
}

// Who keeps the CNI plugin on a node writes to two directories of it, and has no capability; the node proxy has neither directory.
func installerMayNothingElse(t *testing.T, pod any) {
	t.Helper()
	mounts := func(container any) (names []string) {
		for _, m := range dig(container, "volumeMounts").([]any) {
			names = append(names, fmt.Sprint(dig(m, "name")))
		}
		return names
	}
	proxy, installer := dig(pod, "containers", 0), dig(pod, "containers", 1)
	if got := mounts(installer); !slices.Equal(got, []string{"cni-bin", "cni-conf"}) {
		t.Errorf("the installer mounts %q", got)
	}
	if got := mounts(proxy); slices.Contains(got, "cni-bin") || slices.Contains(got, "cni-conf") || !slices.Contains(got, "cni-socket") {
		t.Errorf("the node proxy mounts %q", got)
	}
	want := map[string]any{"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": map[string]any{"drop": []any{"ALL"}}}
	if got := dig(installer, "securityContext"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the installer's securityContext is %v, want %v", got, want)
	}
	for _, arg := range []string{"install", "--exclude-namespaces=kube-system,isthmus-system", "--failure-policy=Fail"} {
		if !slices.Contains(dig(installer, "args").([]any), any(arg)) {
			t.Errorf("the installer is not told %s: %v", arg, dig(installer, "args"))
		}
	}
}

// A node proxy that captures has the capabilities by which it enters network namespaces, and sees the
// processes of its node; any other one has nothing, and the directory with its state.
func TestNodeProxiesMayWhatCaptureNeedsAndNothingElse(t *testing.T) {
	for _, set := range cases(t) {
		if set == "smallest" {
			continue // node proxies are off by default
		}
		pod := dig(find(t, rendered(t, set), "DaemonSet", "isthmus-nodeproxy").all, "spec", "template", "spec")
		container := dig(pod, "containers", 0)
		capabilities := map[string]any{"drop": []any{"ALL"}}
		paths := []string{"/var/lib/isthmus"}
		var armor any
		switch set {
		case "capture", "captureall", "cni":
			capabilities["add"] = []any{"NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_PTRACE"}
			paths = append(paths, "/proc")
			armor = map[string]any{"type": "Unconfined"}
			if set == "cni" {
				paths = append(paths, "/run/isthmus", "/opt/cni/bin", "/etc/cni/net.d")
				installerMayNothingElse(t, pod)
			}
		case "everything":
			capabilities["add"] = []any{"NET_BIND_SERVICE"} // of nodeProxy.capabilities
		}
		for path, want := range map[string]any{"capabilities": capabilities, "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "privileged": nil} {
			if got := dig(container, "securityContext", path); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: securityContext.%s of a node proxy is %v, want %v", set, path, got, want)
			}
		}
		for path, want := range map[string]any{"appArmorProfile": armor, "seccompProfile": map[string]any{"type": "RuntimeDefault"}} {
			if got := dig(pod, "securityContext", path); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: securityContext.%s of the pod of a node proxy is %v, want %v", set, path, got, want)
			}
		}
		for _, key := range []string{"hostPID", "hostIPC"} {
			if v := dig(pod, key); v != nil {
				t.Errorf("%s: a node proxy has %s: %v", set, key, v)
			}
		}
		var got []string
		for _, v := range dig(pod, "volumes").([]any) {
			if path := dig(v, "hostPath", "path"); path != nil {
				got = append(got, fmt.Sprint(path))
			}
		}
		if !slices.Equal(got, paths) {
			t.Errorf("%s: a node proxy mounts %q of its node, want %q", set, got, paths)
		}
		for _, m := range dig(container, "volumeMounts").([]any) {
			if dig(m, "name") == "proc" && dig(m, "readOnly") != true {
				t.Errorf("%s: a node proxy can write to the node's /proc", set)
			}
		}
	}
}

// Gateways ask and watch, and have tokens reviewed; the controller alone writes.
func TestRightsAreTheLeast(t *testing.T) {
	for _, o := range rendered(t, "everything") {
		if o.Kind != "ClusterRole" && o.Kind != "Role" {
			continue
		}
		for _, r := range o.Rules {
			all := slices.Concat(r.APIGroups, r.Resources, r.Verbs, r.NonResourceURLs)
			if slices.Contains(all, "*") || slices.Contains(r.Resources, "secrets") || slices.Contains(r.Verbs, "impersonate") {
				t.Errorf("%s %s: rule %+v is too much", o.Kind, o.Metadata.Name, r)
			}
			if o.Metadata.Name == "isthmus-gateway" && !slices.Equal(r.Resources, []string{"tokenreviews"}) {
				for _, v := range r.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, v) {
						t.Errorf("a gateway may %s %v", v, r.Resources)
					}
				}
			}
		}
	}
}

// A change of the configuration restarts the pods, since it is read at the start alone.
func TestAChangedConfigurationRestarts(t *testing.T) {
	sum := func(args ...string) any {
		out, err := render(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		_, after, ok := strings.Cut(out, "isthmus.io/config: ")
		if !ok {
			t.Fatal("no checksum is rendered")
		}
		return strings.Fields(after)[0]
	}
	same, other := []string{"--set", "network=west,gateway.replicas=5"}, []string{"--set", "network=west,trustDomain=west.example"}
	base := sum("--set", "network=west")
	if sum(same...) != base || sum(other...) == base {
		t.Errorf("checksums: %v, with more replicas %v, with another trust domain %v", base, sum(same...), sum(other...))
	}
}

// Before isthmus link there is no ConfigMap of other networks. What a process finds then is a
// file that lists none: a missing one is a mistake, with which it does not start.
func TestProcessesStartBeforeTheirClusterIsLinked(t *testing.T) {
	for _, set := range cases(t) {
		objects := rendered(t, set)
		for _, o := range objects {
			if o.Kind != "Deployment" && o.Kind != "DaemonSet" {
				continue
			}
			for _, v := range dig(o.all, "spec", "template", "spec", "volumes").([]any) {
				if dig(v, "name") != "networks" {
					continue
				}
				first, second := dig(v, "projected", "sources", 0, "configMap"), dig(v, "projected", "sources", 1, "configMap")
				if dig(second, "name") != "isthmus-networks" || dig(second, "optional") != true || dig(second, "items") != nil {
					t.Errorf("%s: %s: the second source is %v, want isthmus-networks, if it is there", set, o.Metadata.Name, second)
				}
				text := find(t, objects, "ConfigMap", fmt.Sprint(dig(first, "name"))).Data["networks.yaml"]
				if f, err := keyfile.ParseFile("networks.yaml", []byte(text)); err != nil || len(f.Networks) != 0 || dig(first, "items", 0, "path") != "networks.yaml" {
					t.Errorf("%s: %s: without isthmus link the file is %q (%v), want one that lists no networks", set, o.Metadata.Name, text, err)
				}
			}
		}
	}
}

// Listeners that other pods reach are open to clients alone; those on loopback addresses, of the host
// network, and all of them where nobody may use them, are open to nobody.
func TestClientsReachListenersOfNodeProxies(t *testing.T) {
	admitted := func(objects []object) (out []any) {
		ingress, _ := find(t, objects, "NetworkPolicy", "isthmus-nodeproxy").Spec["ingress"].([]any)
		return ingress[1:] // the first one is monitoring
	}
	rules := admitted(rendered(t, "listeners"))
	want := map[string]any{
		"from":  []any{map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"isthmus.io/clients": "true"}}}},
		"ports": []any{map[string]any{"port": 15080, "protocol": "TCP"}, map[string]any{"port": 15090, "protocol": "TCP"}},
	}
	if len(rules) != 1 || fmt.Sprint(rules[0]) != fmt.Sprint(want) {
		t.Errorf("it admits %v; want %v", rules, want)
	}
	for _, set := range []string{"networkPolicy.clients=[]", "nodeProxy.hostNetwork=true", `nodeProxy.config.socks=[{"listen":"127.9.9.9:1","workload":"u"}]`} {
		args := []string{"--values", "testdata/listeners.values.yaml", "--set-json", set, "--set", "networkPolicy.nodeCIDRs={10.0.0.0/8}"}
		if strings.Contains(set, "socks") {
			args = append(args, "--set-json", "nodeProxy.config.outbound=[]")
		}
		text, err := render(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rendered.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if rules := admitted(objectsOf(t, file)); len(rules) != 0 {
			t.Errorf("with %s it admits %v", set, rules)
		}
	}
}
