//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestVersionIsPrintedAsByTheOthers(t *testing.T) {
	for _, arg := range []string{"version", "-version", "--version"} {
		var out, said bytes.Buffer
		if code := run([]string{arg}, &out, &said); code != 0 || !strings.HasPrefix(out.String(), "isthmus-cni ") || !strings.Contains(out.String(), " go1.") || said.Len() > 0 {
			t.Errorf("%s: code %d, prints %q and %q", arg, code, &out, &said)
		}
	}
	var out, said bytes.Buffer
	if code := run([]string{"remove"}, &out, &said); code != 2 || out.Len() > 0 || !strings.Contains(said.String(), "use install, uninstall or version") {
		t.Errorf("remove: code %d, prints %q and %q", code, &out, &said)
	}
}
