//go:build linux

package cniinstall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (n *Node) isLink(t *testing.T, name string) {
	t.Helper()
	if st, err := os.Lstat(filepath.Join(n.ConfDir, name)); err != nil || st.Mode().Type() != os.ModeSymlink {
		t.Errorf("%s is %v, %v; it was a link", name, st.Mode(), err)
	}
}

// What the node's CNI writes to the target of a link is what runtimes use.
func TestALinkStaysOneAndItsTargetIsChanged(t *testing.T) {
	n := newNode(t, nil)
	must(t, os.Mkdir(filepath.Join(n.ConfDir, "cni"), 0o700))
	n.put(t, "cni/pods", main)
	must(t, os.Symlink("cni/pods", filepath.Join(n.ConfDir, "10-pods.conflist")))
	must(t, n.locked(n.configure))
	n.isLink(t, "10-pods.conflist")
	n.put(t, "cni/pods", mtu(1400))
	n.put(t, "cni/.pods.isthmus-new", "left by a process that was killed")
	must(t, n.locked(n.configure))
	n.has(t, "10-pods.conflist", "1400", with, "10-pods.conflist", "cni")
	must(t, n.locked(n.unconfigure))
	n.has(t, "10-pods.conflist", "1400", without, "10-pods.conflist", "cni")
	n.isLink(t, "10-pods.conflist")
	if left, err := os.ReadDir(filepath.Join(n.ConfDir, "cni")); err != nil || len(left) != 1 {
		t.Errorf("beside the target are %v, %v", left, err)
	}
}

// A link and what it leads to are one configuration by two names.
func TestALinkBesideItsTargetIsNoSecondConfiguration(t *testing.T) {
	n := newNode(t, map[string]string{"20-pods.conflist": main})
	must(t, os.Symlink("20-pods.conflist", filepath.Join(n.ConfDir, "10-pods.conflist")))
	for range 2 {
		must(t, n.configure())
		n.has(t, "10-pods.conflist", "1450", with, "10-pods.conflist", "20-pods.conflist")
	}
	must(t, n.unconfigure())
	n.has(t, "10-pods.conflist", "1450", without, "10-pods.conflist", "20-pods.conflist")
}

// From a container it may lead elsewhere than on the node: it is left alone, and said.
func TestALinkThatLeadsElsewhereIsNamed(t *testing.T) {
	const single = `{"cniVersion":"1.0.0","name":"pods","type":"bridge"}`
	outside := filepath.Join(t.TempDir(), "cni.conflist")
	must(t, os.WriteFile(outside, []byte(main), 0o600))
	for to, want := range map[string]string{
		outside:           "10-pods.conf is a symbolic link to " + outside + ", which is not followed (that is not in ",
		"../gone":         "10-pods.conf is a symbolic link to ../gone, which is not followed (lstat ",
		"10-pods.conf":    "too many links",
		"single.template": "a configuration of a single plugin, of which no list is made: write one",
	} {
		n := newNode(t, map[string]string{"20-other.conflist": main, "single.template": single})
		must(t, os.Symlink(to, filepath.Join(n.ConfDir, "10-pods.conf")))
		if err := n.configure(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "put the file itself there") {
			t.Errorf("to %s: %v, want %q and what to do", to, err, want)
		}
		n.isLink(t, "10-pods.conf")
		n.has(t, "20-other.conflist", "1450", without, "10-pods.conf", "20-other.conflist", "single.template")
		if b, err := os.ReadFile(outside); err != nil || string(b) != main {
			t.Errorf("outside there is %s, %v", b, err)
		}
	}
}
