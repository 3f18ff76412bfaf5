//go:build linux

package cniinstall

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const main = `{"cniVersion":"1.0.0","name":"pods","disableCheck":true,"plugins":[{"type":"ptp","mtu":1450,"ipam":{"type":"host-local","big":12345678901234567890}},{"type":"portmap","capabilities":{"portMappings":true}}]}`

func newNode(t *testing.T, files map[string]string) *Node {
	t.Helper()
	n := &Node{Executable: filepath.Join(t.TempDir(), "isthmus-cni"), BinDir: t.TempDir(), ConfDir: t.TempDir(), Log: zerolog.Nop()}
	must(t, n.Plugin.Check())
	must(t, os.WriteFile(n.Executable, []byte("the program"), 0o700))
	for name, text := range files {
		must(t, os.WriteFile(filepath.Join(n.ConfDir, name), []byte(text), 0o600))
	}
	return n
}

// types are those of the plugins of a list.
func (n *Node) types(t *testing.T, name string) (out []string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.ConfDir, name))
	must(t, err)
	var l struct{ Plugins []struct{ Type string } }
	must(t, json.Unmarshal(b, &l))
	for _, p := range l.Plugins {
		out = append(out, p.Type)
	}
	return out
}

func (n *Node) files(t *testing.T) (out []string) {
	t.Helper()
	list, err := os.ReadDir(n.ConfDir)
	must(t, err)
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func TestTheEntryIsPutLastAndNothingElseIsChanged(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": main, "20-other.conflist": main, "README": "no configuration"})
	must(t, n.putBinary())
	must(t, n.configure())
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni"}) {
		t.Errorf("plugins %v", got)
	}
	if got := n.types(t, "20-other.conflist"); !slices.Equal(got, []string{"ptp", "portmap"}) {
		t.Errorf("plugins of a list that no runtime reads: %v", got)
	}
	path := filepath.Join(n.ConfDir, "10-pods.conflist")
	text, err := os.ReadFile(path)
	must(t, err)
	for _, want := range []string{strings.TrimSuffix(main, "]}"), `"failurePolicy":"Ignore"`, `"dns":true`, `"socket":"/run/isthmus/cni.sock"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	st, err := os.Stat(path)
	must(t, err)
	if st.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, want what it was", st.Mode())
	}
	must(t, n.configure())
	must(t, n.putBinary())
	again, err := os.Stat(path)
	must(t, err)
	if !os.SameFile(st, again) {
		t.Error("what is as it should be is written again")
	}
	if bin, err := os.Stat(filepath.Join(n.BinDir, "isthmus-cni")); err != nil || bin.Mode().Perm() != 0o755 {
		t.Errorf("the binary: %v, %v", bin, err)
	}
	n.Plugin.FailurePolicy = cniplugin.Fail // another configuration takes its place, where it is
	l, err := parseList(again2(t, path))
	must(t, err)
	l.splice(l.plugins[2].to, l.plugins[2].to, []byte(`,{"type":"later"}`))
	must(t, n.write(path, l, func(text []byte) error { return os.WriteFile(path, text, 0o600) }))
	must(t, n.configure())
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni", "later"}) {
		t.Errorf("plugins %v, want who came later behind", got)
	}
	if !strings.Contains(string(again2(t, path)), `"failurePolicy":"Fail"`) {
		t.Error("the entry is not the one that is wanted")
	}
	must(t, n.unconfigure())
	must(t, n.unconfigure())
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "later"}) {
		t.Errorf("plugins %v after all", got)
	}
	if got := n.files(t); !slices.Equal(got, []string{"10-pods.conflist", "20-other.conflist", "README"}) {
		t.Errorf("files %v", got)
	}
}

func again2(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

// A configuration of a single plugin becomes a list, and is what it was afterwards.
func TestASinglePluginBecomesAList(t *testing.T) {
	const single = `{"cniVersion":"0.4.0","name":"pods","type":"bridge","bridge":"cni0"}`
	n := newNode(t, map[string]string{"10-pods.conf": single, "20-other.conflist": main})
	must(t, n.configure())
	must(t, n.configure())
	if got := n.files(t); !slices.Equal(got, []string{"10-pods.conf.isthmus-saved", "10-pods.conflist", "20-other.conflist"}) {
		t.Errorf("files %v", got)
	}
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"bridge", "isthmus-cni"}) {
		t.Errorf("plugins %v", got)
	}
	must(t, os.WriteFile(filepath.Join(n.ConfDir, "10-pods.conf"), []byte(strings.Replace(single, "cni0", "cni1", 1)), 0o600)) // the node's CNI writes it anew
	must(t, n.configure())
	if text := string(again2(t, filepath.Join(n.ConfDir, "10-pods.conflist"))); !strings.Contains(text, "cni1") {
		t.Errorf("the list is %s, want what was written last", text)
	}
	must(t, n.unconfigure())
	if got := n.files(t); !slices.Equal(got, []string{"10-pods.conf", "20-other.conflist"}) {
		t.Errorf("files %v", got)
	}
	if text := string(again2(t, filepath.Join(n.ConfDir, "10-pods.conf"))); !strings.Contains(text, "cni1") {
		t.Errorf("it is %s", text)
	}
}

// What the node's own CNI writes anew has the entry again, and what cannot be changed is left as it is, and said.
func TestItIsKeptAndWhatCannotBeIsSaid(t *testing.T) {
	n := newNode(t, nil)
	lines := make(chan string, 100)
	n.Log = zerolog.New(zerolog.SyncWriter(writer(func(b []byte) { lines <- string(b) })))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	said := func(want string) {
		t.Helper()
		for {
			select {
			case l := <-lines:
				if strings.Contains(l, want) {
					return
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("the log does not say %q", want)
			}
		}
	}
	path := filepath.Join(n.ConfDir, "10-pods.conflist")
	for _, step := range [][2]string{
		{"", "has no network configuration"},
		{main, "is as it should be"},
		{`{"cniVersion":"0.2.0","name":"pods","plugins":[{"type":"ptp"}]}`, "knows no chains"},
		{`{"cniVersion":"1.0.0",`, "unexpected end of JSON"},
		{`{"cniVersion":"1.0.0","name":"pods","plugins":{}}`, "10-pods.conflist: plugins: is no list: "},
		{`{"cniVersion":1,"name":"pods","plugins":[{"type":"ptp"}]}`, "cniVersion: json: cannot unmarshal number into Go value of type string: write one such as"},
		{`{"cniVersion":"1.0.0","name":"pods","plugins":[]}`, "plugins: is empty"},
		{strings.Replace(main, "1450", "1400", 1), "is as it should be"},
	} {
		if step[0] != "" {
			must(t, os.WriteFile(path+".new", []byte(step[0]), 0o600))
			must(t, os.Rename(path+".new", path))
		}
		said(step[1])
	}
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni"}) {
		t.Errorf("plugins %v", got)
	}
	cancel()
	must(t, <-done)
	if got := n.types(t, "10-pods.conflist"); len(got) != 3 {
		t.Errorf("plugins %v when it has stopped: the next one may be there already", got)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestTheCommandLine(t *testing.T) {
	for args, want := range map[string]string{
		"":                                  "say what to do",
		"remove":                            `"remove" is unknown: use install, uninstall or version`,
		"install --timeout 1h":              `timeout "1h" is no duration`,
		"install --failure-policy Maybe":    `failurePolicy "Maybe" is unknown`,
		"install now":                       `argument "now"`,
		"install --socket run/isthmus.sock": "is no absolute path",
	} {
		var out bytes.Buffer
		if code := Main(strings.Fields(args), &out); code != 2 || !strings.Contains(out.String(), want) {
			t.Errorf("%q: code %d, %s, want %q", args, code, out.String(), want)
		}
	}
}

// Of a list that is mistyped nothing is left out without a word.
func TestNamespacesThatAreExcludedHaveNames(t *testing.T) {
	for list, want := range map[string]string{
		"":          "",
		"a,b-1":     "",
		"a,,b":      `--exclude-namespaces "a,,b": entry 2, "", is the name of no namespace: write names with a comma between them`,
		"a,":        `entry 2, "", is the name of no namespace`,
		"a, b":      `entry 2, " b", is the name of no namespace`,
		"default,A": `entry 2, "A", is the name of no namespace`,
	} {
		_, err := (&Node{}).parse([]string{"uninstall", "--exclude-namespaces", list}, &bytes.Buffer{})
		if (err == nil) != (want == "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
}

// A directory that is not there may be one that is mounted elsewhere: that nothing is left of the plugin nobody knows then.
func TestADirectoryThatIsNotThereIsNamedWithItsFlag(t *testing.T) {
	n := newNode(t, nil)
	must(t, os.Remove(n.ConfDir))
	want := "--conf-dir " + n.ConfDir + ": open " + n.ConfDir + ": no such file or directory: mount the directory of the node's network configurations there, or name where it is"
	for what, do := range map[string]func() error{"install": n.configure, "uninstall": n.unconfigure} {
		if err := do(); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
	must(t, os.Remove(n.BinDir))
	if err := n.putBinary(); err == nil || !strings.HasPrefix(err.Error(), "--bin-dir "+n.BinDir+": ") || !strings.HasSuffix(err.Error(), "or name where it is") {
		t.Errorf("install: %v, want it to name --bin-dir and what to do", err)
	}
}

// Whatever is in a file: what comes of it is a list with one entry of ours, or it is left as it is.
func FuzzList(f *testing.F) {
	f.Add([]byte(main))
	f.Add([]byte(`{"cniVersion":"0.3.1","plugins":[{"type":"isthmus-cni"},{"type":"isthmus-cni"}]}`))
	f.Add([]byte(`{"type":"bridge","cniVersion":"1.0.0"}`))
	entry := json.RawMessage(`{"type":"isthmus-cni"}`)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) (*list, error){parseList, asList} {
			l, err := parse(b)
			if err != nil || l.fits() != nil {
				continue
			}
			was, had := l.text, len(l.ours()) > 0
			l.with(entry)
			text := l.text
			again, err := parseList(text)
			if err != nil || len(again.ours()) != 1 || again.with(entry) {
				t.Fatalf("%s becomes %s, %v", b, text, err)
			}
			if again.without(); !had && !bytes.Equal(again.text, was) {
				t.Errorf("%s becomes %s and then %s", was, text, again.text)
			}
		}
	})
}
