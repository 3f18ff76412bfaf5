//go:build linux

package cniinstall

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const (
	single = `{"cniVersion":"1.0.0","name":"old","type":"ptp"}`
	theirs = `{"cniVersion":"1.0.0","name":"new","plugins":[{"type":"bridge"}]}`
)

func (n *Node) text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(n.ConfDir, name))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// A list of somebody else that has the name which that of a single plugin would have is left as it is.
func TestNoListOfOthersIsOverwritten(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conf": single, "10-pods.conflist": theirs})
	if err := n.configure(); err == nil {
		t.Error("nobody is told")
	}
	if got := n.text(t, "10-pods.conflist"); got != theirs {
		t.Errorf("the list is %s", got)
	}
}

// It was interrupted when the list was written, and goes on.
func TestAnInterruptedConversionIsEnded(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conf": single})
	must(t, n.configure())
	must(t, os.Rename(filepath.Join(n.ConfDir, "10-pods.conf"+saved), filepath.Join(n.ConfDir, "10-pods.conf")))
	n.Plugin.Timeout = "7s" // of the process after
	must(t, n.configure())
	if got := n.files(t); len(got) != 2 || n.types(t, "10-pods.conflist")[1] != "isthmus-cni" {
		t.Errorf("files %v, %s", got, n.text(t, "10-pods.conflist"))
	}
}

// What the node's CNI has written since, where a list was made of a single plugin, stays, and the old one does not come back.
func TestAListThatWasWrittenSinceStays(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conf": single})
	must(t, n.configure())
	must(t, os.WriteFile(filepath.Join(n.ConfDir, "10-pods.conflist"), []byte(theirs), 0o600))
	must(t, n.configure())
	must(t, n.unconfigure())
	if files := n.files(t); len(files) != 1 || len(n.types(t, "10-pods.conflist")) != 1 || n.types(t, "10-pods.conflist")[0] != "bridge" {
		t.Errorf("files %v, %s", files, n.text(t, "10-pods.conflist"))
	}
}

// The node's CNI has written the configuration of a single plugin anew: the list that was made of the one before goes all the
// same, as it would be used when that goes, and be taken for somebody else's by a later install.
func TestNoListOfOursIsLeft(t *testing.T) {
	newer := strings.Replace(single, "ptp", "bridge", 1)
	n := newNode(t, map[string]string{"10-pods.conf": single})
	must(t, n.configure())
	n.put(t, "10-pods.conf", newer)
	must(t, n.unconfigure())
	if got := n.files(t); !slices.Equal(got, []string{"10-pods.conf"}) || n.text(t, "10-pods.conf") != newer {
		t.Errorf("files %v, %s", got, n.text(t, "10-pods.conf"))
	}
	must(t, n.configure())
	n.has(t, "10-pods.conflist", "bridge", []string{"bridge", "isthmus-cni"}, "10-pods.conf.isthmus-saved", "10-pods.conflist")
}

// While the first configuration cannot be read, such as one that is just being written, the next one keeps its plugin.
func TestAFirstConfigurationThatCannotBeReadTakesNothingAway(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": theirs})
	must(t, n.configure())
	must(t, os.WriteFile(filepath.Join(n.ConfDir, "05-first.conflist"), []byte(`{"cniVersion":`), 0o600))
	if err := n.configure(); err == nil {
		t.Error("nobody is told")
	}
	if got := n.types(t, "10-pods.conflist"); len(got) != 2 {
		t.Errorf("it calls %v", got)
	}
}

// A configuration that is no JSON is passed over, as by CRI-O; it is said, with what to do.
func TestABrokenConfigurationIsPassedOver(t *testing.T) {
	n := newNode(t, map[string]string{"05-broken.conflist": `{"cniVersion":`, "10-pods.conflist": main})
	err := n.configure()
	if err == nil || !strings.Contains(err.Error(), "05-broken.conflist: it is no JSON: mend it, or delete it") {
		t.Errorf("it is said as %v", err)
	}
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni"}) {
		t.Errorf("the next one calls %v", got)
	}
	must(t, os.WriteFile(filepath.Join(n.ConfDir, "05-broken.conflist"), []byte(main), 0o600)) // it was just being written
	must(t, n.configure())
	if got := n.types(t, "05-broken.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni"}) {
		t.Errorf("when it is whole it calls %v", got)
	}
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap"}) {
		t.Errorf("then the next one calls %v", got)
	}
}

// What runtimes take for no configuration is passed over as what is no JSON is.
func TestAConfigurationOfTheWrongKindIsPassedOver(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"05-list.conf":      {main, "05-list.conf: a list of plugins has a name that ends in .conflist: mend it, or delete it"},
		"05-none.conf":      {`{"cniVersion":"1.0.0","name":"pods"}`, "05-none.conf: it has no type, as the configuration of a single plugin has: mend it, or delete it"},
		"05-none.json":      {`{}`, "05-none.json: it has no type"},
		"05-array.conflist": {`[{"type":"ptp"}]`, "05-array.conflist: it is a JSON array, and no object ({…}): mend it, or delete it"},
	} {
		n := newNode(t, map[string]string{name: c.text, "10-pods.conflist": main})
		if err := n.configure(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s is said as %v", name, err)
		}
		n.has(t, "10-pods.conflist", "1450", with, name, "10-pods.conflist")
		if got := n.text(t, name); got != c.text {
			t.Errorf("%s is %s", name, got)
		}
	}
	n := newNode(t, map[string]string{"10-pods.conflist": single})
	if err := n.configure(); err == nil || !strings.Contains(err.Error(), "10-pods.conflist has no plugins: write them") {
		t.Errorf("a single plugin that is called a list is said as %v", err)
	}
}

// Where the entry cannot be there is nothing to take out, and nothing to say.
func TestConfigurationsThatNeverHadTheEntryAreLeftInPeace(t *testing.T) {
	n := newNode(t, map[string]string{"10-old.conflist": `{"cniVersion":"0.2.0","plugins":[{"type":"ptp"}]}`, "20-empty.conflist": `{"plugins":[]}`, "30-single.conf": single})
	must(t, n.unconfigure())
	n.put(t, "10-old.conflist", `{"plugins":[{"type":"ptp"},{"type":"isthmus-cni"}]}`) // by hand
	must(t, n.unconfigure())
	if got := n.types(t, "10-old.conflist"); !slices.Equal(got, []string{"ptp"}) {
		t.Errorf("it calls %v", got)
	}
}

// Runtimes look for files alone.
func TestADirectoryIsNoConfiguration(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": main})
	must(t, os.Mkdir(filepath.Join(n.ConfDir, "05-old.conf"), 0o700))
	must(t, n.configure())
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni"}) {
		t.Errorf("it calls %v", got)
	}
}

// First in a chain the plugin would be called before the pod has an address.
func TestAnEntryThatComesFirstIsMovedToTheEnd(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": strings.Replace(main, `"plugins":[`, `"plugins":[{"type":"isthmus-cni"},`, 1)})
	must(t, n.configure())
	if got := n.types(t, "10-pods.conflist"); !slices.Equal(got, []string{"ptp", "portmap", "isthmus-cni"}) {
		t.Errorf("it calls %v", got)
	}
}

// What stands in the place of a file is named: nothing of it is waited for, and nothing is written for it each second.
func TestWhatIsNoFileIsNamed(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		n := newNode(t, map[string]string{"20-pods.conflist": main})
		bin, conf := filepath.Join(n.BinDir, "isthmus-cni"), filepath.Join(n.ConfDir, "10-pods.conf")
		must(t, put(bin))
		if err := n.putBinary(); err == nil || !strings.Contains(err.Error(), bin+" is no file") || !strings.Contains(err.Error(), "delete it") {
			t.Errorf("%s in the place of the binary is said as %v", name, err)
		}
		if name == "a directory" { // of these runtimes take none for a configuration
			continue
		}
		must(t, put(conf))
		for _, do := range []func() error{n.configure, n.unconfigure} {
			if err := do(); err == nil || !strings.Contains(err.Error(), conf+" is no file") {
				t.Errorf("%s in the place of a configuration is said as %v", name, err)
			}
		}
	}
}

// What is wrong each second is said once.
func TestTheSameIsSaidInTheSameWords(t *testing.T) {
	n := newNode(t, nil)
	must(t, os.Remove(n.BinDir))
	if a, b := n.putBinary(), n.putBinary(); a == nil || b == nil || a.Error() != b.Error() {
		t.Errorf("%v, and then %v", a, b)
	}
}

func TestDirectoriesAreAbsolute(t *testing.T) {
	for _, flag := range []string{"--conf-dir=net.d", "--bin-dir="} {
		n := &Node{}
		if _, err := n.parse([]string{"install", flag}, io.Discard); err == nil || !strings.Contains(err.Error(), "is no absolute path: name the directory") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
