package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/isthmus-mesh/isthmus/identity"
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

// A cluster that is another network already, here or by another namespace, is left as it is: no
// object and no file is made, and what is said names the way out.
func TestInitInTheWrongPlaceWritesNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	_, east, _ := isthmus(t, "init", "--network", "east", "--trust-domain", "east.local")
	card := without(t, without(t, without(t, east, keySecret, ""), caSecret, ""), rootMap, "")
	for name, x := range map[string]struct {
		args  string
		has   string
		wants []string
	}{
		"the context of another network":         {"--network west --context w", east, []string{`init of context "w": its cluster is network "east" already`, "--context", "--network east", "--replace"}},
		"the current context":                    {"--network west", east, []string{"the kubeconfig's current context", `network "east" already`}},
		"another network, of which a card stays": {"--network west", card, []string{`network "east" already`, "there is no Secret"}},
		"a directory that is mistyped":           {"--network east --dir esat", east, []string{"esat, which is not there yet, does not have that", "(--dir)"}},
		"another namespace":                      {"--network west --namespace mesh --replace", elsewhereHas(t, east), []string{`network "east" already, in namespace isthmus-system`, "--namespace isthmus-system", "--namespace isthmus-system delete configmap isthmus-network"}},
		"its own network in another namespace":   {"--network east --namespace mesh", elsewhereHas(t, east), []string{`network "east" already, in namespace isthmus-system`}},
	} {
		program, applied := storingKubectl(t, x.has)
		code, out, errs := isthmus(t, append(strings.Fields("init --apply --kubectl "+program), strings.Fields(x.args)...)...)
		if _, err := os.Stat(applied); err == nil || code != exitFinding || out != "" {
			t.Errorf("%s: exit %d, applied: %t, %s%s", name, code, err == nil, out, errs)
		}
		wantIn(t, errs, x.wants...)
		if files, _ := os.ReadDir("."); len(files) != 1 {
			t.Errorf("%s: %d directories; want that of east alone", name, len(files))
		}
	}
	program, _ := storingKubectl(t, elsewhereHas(t, east))
	if code, _, errs := isthmus(t, strings.Fields("init --network east --apply --kubectl "+program)...); code != exitOK {
		t.Errorf("the namespace that the network is in: %d, %s", code, errs)
	}
}

// elsewhereHas is what kubectl lists of the card of a cluster in all namespaces.
func elsewhereHas(t *testing.T, manifests string) string {
	t.Helper()
	for part := range strings.SplitSeq(manifests, "\n---\n") {
		if strings.Contains(part, "kind: ConfigMap") && strings.Contains(part, "name: "+cardMap+"\n") {
			return "---\nkind: Configmaps\nmetadata: {name: --all-namespaces}\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(part), "\n", "\n  ") + "\n"
		}
	}
	t.Fatal("there is no card")
	return ""
}

// Who has run init knows where the keys are, whether they are new, and what comes next.
func TestInitSaysWhereTheKeysAreAndWhatIsNext(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	program, _ := storingKubectl(t, "")
	line := strings.Fields("init --network west --trust-domain west.local --apply --context w --kubectl " + program)
	for i, word := range []string{"made", "uses"} {
		code, out, errs := isthmus(t, line...)
		if code != exitOK || errs != "" {
			t.Fatalf("%d: %d, %s", i, code, errs)
		}
		wantIn(t, out, word+` the key of network "west" and the certificate authority of trust domain "west.local" in `+filepath.Join(dir, "west")+"\n", "where you keep secrets",
			"helm --kube-context w --namespace isthmus-system install isthmus helm/isthmus --set network=west,trustDomain=west.local --set-string image.registry=REGISTRY,image.tag=TAG # ", "isthmus link --contexts w,OTHER --apply")
	}
	if _, _, errs := isthmus(t, "init", "--network", "west"); errs != "" {
		t.Errorf("of keys that are there it says %s", errs)
	}
	_, _, errs := isthmus(t, "init", "--network", "west", "--dir", "wset")
	wantIn(t, errs, "made the key of network", filepath.Join(dir, "wset"), "--dir")
}

// without are manifests less those of one object, or less one file of it.
func without(t *testing.T, manifests, object, file string) string {
	t.Helper()
	var b strings.Builder
	cut := false
	for part := range strings.SplitSeq(strings.TrimPrefix(manifests, "---\n"), "---\n") {
		if strings.Contains(part, "name: "+object+"\n") && strings.Contains(part, "data:") {
			if file == "" {
				cut = true
				continue
			}
			lines := strings.SplitAfter(part, "\n")
			part = strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "  \""+file+"\"") }), "")
			cut = len(strings.SplitAfter(part, "\n")) < len(lines)
		}
		b.WriteString("---\n" + part)
	}
	if !cut {
		t.Fatalf("there is no %s of %s to leave out", file, object)
	}
	return b.String()
}

// What is left of a pair says whose the other half was: its Secret is made again by its own
// directory, and by no other.
func TestInitKnowsAClusterByEitherHalfOfItsKeys(t *testing.T) {
	t.Chdir(t.TempDir())
	_, live, _ := isthmus(t, "init", "--network", "west", "--trust-domain", "west.local")
	bare := without(t, without(t, live, cardMap, ""), rootMap, "")
	for name, x := range map[string]struct {
		has     string
		refused []string
	}{
		"no key":              {without(t, live, keySecret, ""), []string{"there is no Secret " + keySecret, cardMap, `"west"`, "--replace"}},
		"no root":             {without(t, live, caSecret, ""), []string{"there is no Secret " + caSecret, cardMap, "west.local", "--replace"}},
		"a key without list":  {without(t, bare, keySecret, "network.yaml"), []string{"no network.yaml", "--replace"}},
		"a root without cert": {without(t, bare, caSecret, "ca.pem"), []string{"no ca.pem", "--replace"}},
		"a list without key":  {without(t, bare, keySecret, "key.pem"), []string{`the key of network "west"`, "--replace"}},
	} {
		for dir, refused := range map[string]bool{"west": false, "other": true} {
			program, applied := storingKubectl(t, x.has)
			code, _, errs := isthmus(t, strings.Fields("init --network west --trust-domain west.local --apply --kubectl "+program+" --dir "+dir)...)
			if _, err := os.Stat(applied); (err == nil) == refused || (code == exitFinding) != refused {
				t.Errorf("%s, from %s: exits with %d; %s", name, dir, code, errs)
			}
			if refused {
				wantIn(t, errs, x.refused...)
			}
		}
		if _, err := os.Stat("other"); err == nil {
			t.Fatalf("%s: a refused init leaves keys that no cluster has", name)
		}
	}
}

// A directory that has lost a half gets no new one, which nobody would believe.
func TestInitOfADirectoryThatIsNotWhole(t *testing.T) {
	for lost, want := range map[string]string{
		"ca": "isthmus ca init --dir", "ca/ca.pem": "put the missing file back", "ca/ca-key.pem": "put the missing file back", "network/key.pem": "put the missing file back",
	} {
		t.Run(lost, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if code, _, errs := isthmus(t, "init", "--network", "west"); code != exitOK {
				t.Fatal(errs)
			}
			if err := os.RemoveAll(filepath.Join("west", lost)); err != nil {
				t.Fatal(err)
			}
			code, out, errs := isthmus(t, "init", "--network", "west")
			if code != exitStart || out != "" {
				t.Errorf("exits with %d, prints %d bytes", code, len(out))
			}
			wantIn(t, errs, want)
			if _, err := os.Stat(filepath.Join("west", lost)); err == nil {
				t.Errorf("%s was made anew", lost)
			}
		})
	}
}

// What signs nothing yet stays where it was made: the cluster has its certificate alone.
func TestInitGivesAClusterNoKeyBeforeItSigns(t *testing.T) {
	t.Chdir(t.TempDir())
	if code, _, errs := isthmus(t, "init", "--network", "west"); code != exitOK {
		t.Fatal(errs)
	}
	if code, _, errs := isthmus(t, "ca", "rotate", "--dir", "west/ca"); code != exitOK {
		t.Fatal(errs)
	}
	if err := os.WriteFile("west/ca/mine.pem", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, out, _ := isthmus(t, "init", "--network", "west")
	wantIn(t, out, `"ca-key.pem"`, `"bundle.pem"`, `"network.yaml"`, "kubectl create replaces nothing", "isthmus init --apply")
	for _, s := range []string{"next-ca", "mine.pem"} {
		if strings.Contains(out, s) {
			t.Errorf("the manifests have %s", s)
		}
	}
	// What it has is enough for a controller to sign and to believe both.
	dir := t.TempDir()
	program, _ := storingKubectl(t, out)
	data, err := kubectl{program: program}.secret(t.Context(), caSecret)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if ca, err := identity.OpenCADir(dir); err != nil || len(ca.Current().Roots()) != 2 {
		t.Errorf("%v: the Secret is no CA that believes both roots", err)
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
	wantIn(t, errs, `network "east"`, `network "west"`, "no address", "--wait")
	program, _ = storingKubectl(t, east+linked)
	if code, _, errs := isthmus(t, "unlink", "--contexts", "e", "--network", "wset", "--kubectl", program); code != exitFinding || !strings.Contains(errs, `known are ["west"]`) {
		t.Errorf("a network that is not linked: %d, %s", code, errs)
	}
	if code, _, errs := isthmus(t, "unlink", "--contexts", "e", "--network", "west", "--kubectl", program); code != exitOK {
		t.Errorf("%d, %s", code, errs)
	}
}
