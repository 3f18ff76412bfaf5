//go:build linux

package cniinstall

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestHelpIsNoMistake(t *testing.T) {
	for _, arg := range []string{"help", "-h", "--help"} {
		var out bytes.Buffer
		code := Main([]string{arg}, &out)
		for _, part := range []string{"isthmus-cni install", "isthmus-cni uninstall", "-conf-dir"} {
			if code != 0 || !strings.Contains(out.String(), part) {
				t.Errorf("%s: exit code %d, %q; want 0 and %q", arg, code, &out, part)
			}
		}
	}
}

// What uninstall takes and does not use is not in its help.
func TestHelpHasTheFlagsOfItsCommand(t *testing.T) {
	for args, wants := range map[string]map[string]bool{
		"install --help":   {"isthmus-cni install [flags]": true, "isthmus-cni uninstall": false, "-bin-dir": true, "-conf-dir": true, "-failure-policy": true, "-once": true},
		"uninstall --help": {"isthmus-cni uninstall [flags]": true, "isthmus-cni install": false, "-bin-dir": false, "-conf-dir string": true, "-once": true, `(default "/etc/cni/net.d")`: true, "-failure-policy": false},
	} {
		var out bytes.Buffer
		if code := Main(strings.Fields(args), &out); code != 0 {
			t.Errorf("%s: exit code %d", args, code)
		}
		for part, want := range wants {
			if strings.Contains(out.String(), part) != want {
				t.Errorf("%s: %q is there: %v, want %v: %s", args, part, !want, want, &out)
			}
		}
	}
}

// By hand Fail must not keep from starting what node proxies depend on, unless somebody asks for that.
func TestNamespacesAreExcludedUnlessNoneIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
		warn bool
	}{
		{"install", []string{"kube-system", "isthmus-system"}, false},
		{"install --failure-policy Fail", []string{"kube-system", "isthmus-system"}, false},
		{"install --failure-policy Fail --exclude-namespaces pki", []string{"pki"}, false},
		{"install --failure-policy Fail --exclude-namespaces=", nil, true},
		{"install --exclude-namespaces=", nil, false},
		{"uninstall --failure-policy Fail --exclude-namespaces=", nil, false},
	} {
		var log bytes.Buffer
		n := &Node{Log: zerolog.New(&log)}
		_, err := n.parse(strings.Fields(c.args), &log)
		if err != nil || !slices.Equal(n.Plugin.ExcludeNamespaces, c.want) {
			t.Errorf("%s: pods of %q do not wait, %v; want %q", c.args, n.Plugin.ExcludeNamespaces, err, c.want)
		}
		if got := strings.Contains(log.String(), `"level":"warn"`) && strings.Contains(log.String(), "such as kube-system,isthmus-system"); got != c.warn || !c.warn && log.Len() > 0 {
			t.Errorf("%s: it is warned: %v, %q; want %v", c.args, got, &log, c.warn)
		}
	}
}

// With --once what is asked for is done once, and whether it was done is the exit code: for a script that sets up a node.
func TestOnceEnds(t *testing.T) {
	for _, command := range []string{"install", "uninstall"} {
		n := newNode(t, map[string]string{"10-pods.conflist": main})
		args := []string{command, "--once", "--bin-dir", n.BinDir, "--conf-dir", n.ConfDir}
		want := []string{"ptp", "portmap"}
		if command == "install" {
			want = append(want, "isthmus-cni")
		}
		ended := make(chan int, 1)
		var out bytes.Buffer
		go func() { ended <- Main(args, &out) }()
		select {
		case code := <-ended:
			if got := n.types(t, "10-pods.conflist"); code != 0 || !slices.Equal(got, want) {
				t.Errorf("%s: exit code %d, plugins %q, want 0 and %q: %s", command, code, got, want, &out)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s --once does not end", command)
		}
	}
	var out bytes.Buffer
	if code := Main([]string{"install", "--once", "--bin-dir", t.TempDir(), "--conf-dir", t.TempDir()}, &out); code != 1 || !strings.Contains(out.String(), "has no network configuration") {
		t.Errorf("without a configuration to put the plugin into: exit code %d, %q, want 1 and that there is none", code, &out)
	}
}
