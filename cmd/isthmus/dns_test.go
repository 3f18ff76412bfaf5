package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// importsJSON is what kubectl prints of a cluster: a service with both families, a headless one, one of somebody
// else's and one that would write more into the configuration than its name.
const importsJSON = `{"items": [
 {"metadata": {"name": "cart", "namespace": "shop", "labels": {"app.kubernetes.io/managed-by": "isthmus-controller"}},
  "spec": {"type": "ClusterSetIP", "ips": ["240.240.0.1", "2001:2::1"], "ports": [{"name": "http", "protocol": "TCP", "port": 80}, {"name": "x\"}\n", "port": 81}, {"name": "dns", "protocol": "UDP", "port": 53}]}},
 {"metadata": {"name": "api", "namespace": "shop", "labels": {"app.kubernetes.io/managed-by": "isthmus-controller"}},
  "spec": {"type": "ClusterSetIP", "ips": ["240.240.0.2", "240.240.0.3\n}"], "ports": [{"port": 80}]}},
 {"metadata": {"name": "db", "namespace": "shop", "labels": {"app.kubernetes.io/managed-by": "isthmus-controller"}},
  "spec": {"type": "Headless", "ips": ["10.0.0.1"], "ports": [{"name": "sql", "port": 5432}]}},
 {"metadata": {"name": "theirs", "namespace": "shop"}, "spec": {"type": "ClusterSetIP", "ips": ["10.0.0.9"], "ports": [{"port": 80}]}},
 {"metadata": {"name": "a.b", "namespace": "shop", "labels": {"app.kubernetes.io/managed-by": "isthmus-controller"}}, "spec": {"type": "ClusterSetIP", "ips": ["240.240.0.9"]}}
]}`

func scriptedKubectl(t *testing.T, script string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubectl")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program
}

// coreDNSTemplate is a template of a Corefile.
type coreDNSTemplate struct {
	kind    string
	match   []*regexp.Regexp
	answer  []string
	outcome string
	falls   bool
}

// templatesOf reads those of a zone, as the plugin template does.
func templatesOf(t *testing.T, corefile, zone string) (out []*coreDNSTemplate) {
	t.Helper()
	_, block, found := strings.Cut(corefile, zone+":53 {\n")
	if !found {
		t.Fatalf("no server block for %s:\n%s", zone, corefile)
	}
	block, _, _ = strings.Cut(block, "\n}\n")
	for line := range strings.Lines(block) {
		switch f := strings.Fields(line); f[0] {
		case "template":
			out = append(out, &coreDNSTemplate{kind: f[2], outcome: "NOERROR"})
		case "match":
			for _, m := range f[1:] {
				out[len(out)-1].match = append(out[len(out)-1].match, regexp.MustCompile(m))
			}
		case "answer":
			records := strings.Fields(strings.Trim(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "answer")), `"`))
			out[len(out)-1].answer = append(out[len(out)-1].answer, records[len(records)-1])
		case "rcode":
			out[len(out)-1].outcome = f[1]
		case "fallthrough":
			out[len(out)-1].falls = true
		case "errors", "authority", "additional", "}":
		default:
			t.Fatalf("the line %q is none that templates have", line)
		}
	}
	return out
}

// templated is what the templates answer: the first that matches does, and one that does not match and falls through not
// is the last.
func templated(templates []*coreDNSTemplate, name, kind string) string {
	for _, x := range templates {
		if x.kind != kind && x.kind != "ANY" {
			continue
		}
		if len(x.match) == 0 || slices.ContainsFunc(x.match, func(m *regexp.Regexp) bool { return m.MatchString(name) }) {
			return strings.Join(append([]string{x.outcome}, x.answer...), " ")
		}
		if !x.falls {
			break
		}
	}
	return "SERVFAIL"
}

func TestDNSPrintsWhatCoreDNSAnswers(t *testing.T) {
	program := scriptedKubectl(t, "case \"$*\" in *serviceimports*) cat <<'X'\n"+importsJSON+"\nX\n;; esac\n")
	code, out, errs := isthmus(t, "dns", "--context", "east", "--kubectl", program)
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, errs)
	}
	wantIn(t, errs, "ServiceImport shop/theirs is left out: isthmus-controller has not made it", "ServiceImport shop/a.b is left out")
	for _, zone := range []string{"mesh.internal", "svc.clusterset.local"} {
		templates := templatesOf(t, out, zone)
		for question, want := range map[string]string{
			"cart.shop. A": "NOERROR 240.240.0.1", "cart.shop. AAAA": "NOERROR 2001:2::1", "cart.shop. TXT": "NOERROR",
			"_http._tcp.cart.shop. SRV": "NOERROR cart.shop." + zone + ".", "_http._tcp.cart.shop. A": "NOERROR", "_tcp.cart.shop. SRV": "NOERROR",
			"_dns._udp.cart.shop. SRV": "NXDOMAIN", "_udp.cart.shop. SRV": "NXDOMAIN",
			"api.shop. A": "NOERROR 240.240.0.2", "api.shop. AAAA": "NOERROR", "_tcp.api.shop. SRV": "NXDOMAIN",
			"db.shop. A": "NOERROR", "_sql._tcp.db.shop. SRV": "NXDOMAIN",
			"theirs.shop. A": "NXDOMAIN", "b.shop. A": "NXDOMAIN", "a.b.shop. A": "NXDOMAIN", "xcart.shop. A": "NXDOMAIN", "x.cart.shop. A": "NXDOMAIN", "cartxshop. A": "NOERROR",
			"shop. A": "NOERROR", " A": "NOERROR", "none.shop. A": "NXDOMAIN",
		} {
			name, kind, _ := strings.Cut(question, " ")
			if got := templated(templates, name+zone+".", kind); got != want {
				t.Errorf("%s%s %s: %q, want %q", name, zone, kind, got, want)
			}
		}
	}

	again := succeedWithout(t, "dns", "--context", "east", "--kubectl", program, "-o", "configmap")
	var object struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Data     map[string]string
	}
	if err := yaml.Unmarshal([]byte(again), &object); err != nil || object.Kind != "ConfigMap" || object.Metadata.Name != "coredns-custom" || object.Metadata.Namespace != "kube-system" || object.Data["isthmus.server"] != out {
		t.Errorf("%v: %+v is not the same text", err, object)
	}
}

// succeedWithout is isthmus that must exit with 0, whatever it says beside its output.
func succeedWithout(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := isthmus(t, args...)
	if code != exitOK {
		t.Fatalf("isthmus %s: exit %d, %s", strings.Join(args, " "), code, errs)
	}
	return out
}

func TestDNSSaysWhatIsWrong(t *testing.T) {
	none := scriptedKubectl(t, "echo \"error: the server doesn't have a resource type \\\"serviceimports\\\"\" >&2; exit 1\n")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"dns", "--context", "east", "--kubectl", none}, exitStart, "install the chart isthmus-crds"},
		{[]string{"dns", "-o", "json", "--kubectl", none}, exitUsage, "use corefile or configmap"},
	} {
		if code, out, errs := isthmus(t, c.args...); code != c.code || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("isthmus %v: exit %d, %q, %q", c.args, code, out, errs)
		}
	}
	// a cluster without imports: names of the mesh go no further
	for what, items := range map[string]string{"no imports": "", "somebody else's alone": `{"metadata": {"name": "theirs", "namespace": "shop"}}`} {
		empty := scriptedKubectl(t, "echo '{\"items\": ["+items+"]}'\n")
		code, out, errs := isthmus(t, "dns", "--kubectl", empty)
		if got := templated(templatesOf(t, out, "mesh.internal"), "cart.shop.mesh.internal.", "A"); code != exitOK || got != "NXDOMAIN" {
			t.Errorf("%s: exit %d, %s", what, code, got)
		}
		wantIn(t, errs, "isthmus: warning: isthmus-controller has made no ServiceImport in this cluster", "NXDOMAIN to every name under mesh.internal")
	}
	some := scriptedKubectl(t, "cat <<'end'\n"+importsJSON+"\nend\n")
	if _, _, errs := isthmus(t, "dns", "--kubectl", some); strings.Contains(errs, "warning") {
		t.Errorf("with imports: %s", errs)
	}
}
