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
