//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/isthmus-mesh/isthmus/internal/netspace"
)

// keepEvidence writes what the proxies of a variant say after operations of a
// sample failed: the ends of their logs, and of ours what they know, count and
// do. It goes to failures/LOAD-VARIANT-RUN below the directory of the results.
func (w *world) keepEvidence(out string, v *variant, s sample) error {
	dir := filepath.Join(out, "failures", fmt.Sprintf("%s-%s-%d", s.Load, s.Variant, s.Run))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, r := range v.roles {
		files := map[string]string{"log": netspace.Tail(r.process.Log)}
		if admin, ok := w.admins[r.process]; ok {
			for name, path := range map[string]string{"state": "/state", "metrics": "/metrics", "goroutines": "/debug/pprof/goroutine?debug=2"} {
				text, err := w.space.Get(r.process.Host, admin, path)
				if err != nil {
					text = []byte(err.Error())
				}
				files[name] = string(text)
			}
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, r.Name+"."+name), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
