//go:build linux

package cniinstall

import (
	"bytes"
	"strings"
	"testing"
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
