package main

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/federation/linkcard"
)

// fakeKubectl is a program that has one ConfigMap to read, and shows what it is to apply.
func fakeKubectl(t *testing.T, get string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "answer"), []byte(get), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubectl")
	script := "#!/bin/sh\ncase \"$1 $2 $3\" in\n'get configmap isthmus-network') cat " + dir + "/answer ;;\nget*) ;;\n*) echo \"error: context is gone: $*\" >&2; exit 1 ;;\nesac\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// printed are the manifests that init prints.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := isthmus(t, append([]string{"init"}, args...)...)
	if code != exitOK {
		t.Fatalf("isthmus init %s: exit %d, %s", strings.Join(args, " "), code, errs)
	}
	return out
}

func TestInitPrintsTheSameTwiceAndKeepsSecretsInSecrets(t *testing.T) {
	t.Chdir(t.TempDir())
	code, first, errs := isthmus(t, "init", "--network", "west")
	if code != exitOK {
		t.Fatal(errs)
	}
	if _, again, _ := isthmus(t, "init", "--network", "west"); again != first {
		t.Error("init again prints something else")
	}
	kinds := map[string]int{}
	for d := yaml.NewDecoder(strings.NewReader(first)); ; {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
			Data     map[string]string
		}
		if d.Decode(&o) != nil {
			break
		}
		kinds[o.Kind+" "+o.Metadata.Name]++
		for name, text := range o.Data {
			if o.Kind == "Secret" {
				if _, err := base64.StdEncoding.DecodeString(text); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			} else if strings.Contains(text, "PRIVATE") {
				t.Errorf("%s of ConfigMap %s has a private key", name, o.Metadata.Name)
			}
		}
		if o.Metadata.Name == cardMap {
			if c, err := linkcard.Parse("card", []byte(o.Data[cardFile])); err != nil || c.Network != "west" {
				t.Errorf("%+v, %v", c, err)
			}
		}
	}
	for _, want := range []string{"Namespace isthmus-system", "Secret isthmus-network-key", "Secret isthmus-ca", "ConfigMap isthmus-root", "ConfigMap isthmus-network"} {
		if kinds[want] != 1 {
			t.Errorf("%d of %s in %v", kinds[want], want, kinds)
		}
	}
	for line, want := range map[string]string{
		"init --network east --dir west":                            "is of network west",
		"init --network west --trust-domain other.local --dir west": "is of cluster.local",
		"init --network West!":                                      "--network",
	} {
		if code, _, errs := isthmus(t, strings.Fields(line)...); code == exitOK || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %s; want %q", line, code, errs, want)
		}
	}
}

func TestLinkSaysWhatIsMissing(t *testing.T) {
	for line, want := range map[string]string{
		"link --contexts east":                    "two or more",
		"link --contexts east,west":               "isthmus link card --context OTHER",
		"unlink --contexts east":                  "--network",
		"unlink --contexts east,west":             "the others by --network",
		"link card --context west":                "isthmus init --network NAME --trust-domain DOMAIN --apply --context west",
		"init --network west --apply --context w": "context is gone",
	} {
		t.Run(line, func(t *testing.T) {
			t.Chdir(t.TempDir())
			code, _, errs := isthmus(t, append(strings.Fields(line), "--kubectl", fakeKubectl(t, ""))...)
			if code == exitOK || !strings.Contains(errs, want) {
				t.Errorf("%d, %s; want %q", code, errs, want)
			}
		})
	}
}
