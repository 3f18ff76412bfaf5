package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// storingKubectl is a program that reads the objects of manifests, and writes what it is to
// apply to the file applied beside it.
func storingKubectl(t *testing.T, manifests string) (program, applied string) {
	t.Helper()
	dir := t.TempDir()
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var o map[string]any
		if d.Decode(&o) != nil {
			break
		}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.ToLower(o["kind"].(string)) + "-" + o["metadata"].(map[string]any)["name"].(string)
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program, applied = filepath.Join(dir, "kubectl"), filepath.Join(dir, "applied")
	script := "#!/bin/sh\ncase \"$1\" in\nget) [ ! -f " + dir + "/$2-$3 ] || cat " + dir + "/$2-$3 ;;\napply) cat > " + applied + " ;;\nesac\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return program, applied
}

// The Secrets of a cluster are replaced by those of another directory only where that is said.
func TestInitReplacesNoKeyThatItsDirectoryDoesNotHave(t *testing.T) {
	t.Chdir(t.TempDir())
	_, live, _ := isthmus(t, "init", "--network", "west", "--trust-domain", "west.local")
	for name, x := range map[string]struct {
		args    string
		has     string
		refused []string
	}{
		"its directory":                        {"--dir west", live, nil},
		"another directory":                    {"--dir new", live, []string{keySecret, caSecret, "west.local", "--replace", "--dir"}},
		"another directory, and meant":         {"--dir meant --replace", live, nil},
		"an empty cluster":                     {"--dir empty", "", nil},
		"its directory after a key is rotated": {"--dir rotated", live, nil},
	} {
		if strings.Contains(x.args, "rotated") {
			if err := os.CopyFS("rotated", os.DirFS("west")); err != nil {
				t.Fatal(err)
			}
			filepath.Walk("rotated", func(p string, i os.FileInfo, _ error) error {
				if i.IsDir() {
					return os.Chmod(p, 0o700)
				}
				return os.Chmod(p, 0o600)
			})
			for _, line := range []string{"network rotate --dir rotated/network", "ca rotate --dir rotated/ca", "ca rotate --dir rotated/ca --switch"} {
				if code, _, errs := isthmus(t, strings.Fields(line)...); code != exitOK {
					t.Fatalf("%s: %s", line, errs)
				}
			}
		}
		program, applied := storingKubectl(t, x.has)
		code, _, errs := isthmus(t, append(strings.Fields("init --network west --apply --kubectl "+program), strings.Fields(x.args)...)...)
		_, err := os.Stat(applied)
		if wrote := err == nil; wrote != (x.refused == nil) || wrote != (code == exitOK) {
			t.Errorf("%s: exits with %d, applied: %t; %s", name, code, wrote, errs)
		}
		wantIn(t, errs, x.refused...)
	}
	if _, err := os.Stat("new"); err == nil {
		t.Error("a refused init leaves keys that no cluster has")
	}
}

func TestUnlinkOfANetworkThatIsNotLinkedFails(t *testing.T) {
	t.Chdir(t.TempDir())
	_, west, _ := isthmus(t, "init", "--network", "west", "--trust-domain", "west.local")
	_, east, _ := isthmus(t, "init", "--network", "east", "--trust-domain", "east.local")
	program, _ := storingKubectl(t, west)
	code, card, errs := isthmus(t, "link", "card", "--kubectl", program)
	if code != exitOK {
		t.Fatal(errs)
	}
	if err := os.WriteFile("west.card", []byte(card), 0o600); err != nil {
		t.Fatal(err)
	}
	program, _ = storingKubectl(t, east)
	code, linked, errs := isthmus(t, "link", "--contexts", "e", "west.card", "--kubectl", program)
	if code != exitOK {
		t.Fatal(errs)
	}
	wantIn(t, errs, `network "east"`, `network "west"`, "no address", "isthmus link again")
	program, _ = storingKubectl(t, east+linked)
	if code, _, errs := isthmus(t, "unlink", "--contexts", "e", "--network", "wset", "--kubectl", program); code != exitFinding || !strings.Contains(errs, `known are ["west"]`) {
		t.Errorf("a network that is not linked: %d, %s", code, errs)
	}
	if code, _, errs := isthmus(t, "unlink", "--contexts", "e", "--network", "west", "--kubectl", program); code != exitOK {
		t.Errorf("%d, %s", code, errs)
	}
}
