//go:build linux

package cniinstall

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// Whoever reads the log sees what has become of the node's files.
func TestTheLogSaysWhatIsPutInAndTakenOut(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conf": single})
	var log bytes.Buffer
	n.Log = zerolog.New(&log)
	said := func(when string, do func() error, want ...string) {
		t.Helper()
		log.Reset()
		must(t, do())
		for _, w := range want {
			if !strings.Contains(log.String(), w) {
				t.Errorf("%s the log says %s, want %s", when, &log, w)
			}
		}
		if got := strings.Count(log.String(), "\n"); got != len(want) {
			t.Errorf("%s the log has %d lines, want %d: %s", when, got, len(want), &log)
		}
	}
	put, out := `.conflist","message":"plugin put into the network configuration"`, `.conflist","message":"plugin taken out of the network configuration"`
	back := `"file":"` + filepath.Join(n.ConfDir, "10-pods.conf") + `","message":"network configuration of a single plugin put back`
	said("installed", n.configure, put)
	said("installed again", n.configure)
	said("uninstalled", n.unconfigure, back)
	said("uninstalled again", n.unconfigure)
	said("installed anew", n.configure, put)
	n.put(t, "10-pods.conflist", strings.Replace(main, `]}`, `,{"type":"isthmus-cni"}]}`, 1))
	said("uninstalled after somebody has written another list", n.unconfigure, `"message":"saved network configuration removed, as another has been written since"`, out)
}
