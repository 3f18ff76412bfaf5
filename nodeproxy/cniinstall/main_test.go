//go:build linux

package cniinstall

import (
	"bytes"
	"slices"
	"strings"
	"testing"

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
		"install --help":   {"isthmus-cni install [flags]": true, "isthmus-cni uninstall": false, "-bin-dir": true, "-conf-dir": true, "-failure-policy": true},
		"uninstall --help": {"isthmus-cni uninstall [flags]": true, "isthmus-cni install": false, "-bin-dir": false, "-conf-dir string": true, `(default "/etc/cni/net.d")`: true, "-failure-policy": false},
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
