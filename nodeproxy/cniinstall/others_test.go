//go:build linux

package cniinstall

import (
	"os"
	"path/filepath"
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
