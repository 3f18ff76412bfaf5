//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	stockproxy "github.com/isthmus-mesh/isthmus/integration/stock"
)

// startStock gives a ztunnel the configuration that isthmus export writes and
// the certificates that isthmus ca serve issues. Like our processes it logs
// warnings only.
func (w *world) startStock(binary, name, workload, network string, at place) (err error) {
	if err := w.isthmus("export", "ztunnel", "--config", "mesh.yaml", "--node", name); err != nil {
		return err
	}
	if _, err := w.start(at.host, name+"-ca", w.space.Accepts(at.host, stockproxy.CA), nil,
		filepath.Join(w.bin, "isthmus"), "ca", "serve", "--dir", "ca", "--listen", stockproxy.CA); err != nil {
		return err
	}
	w.proxies[name], err = w.start(at.host, name, w.space.Ready(at.host, stockproxy.Ready),
		stockproxy.Environment(name, workload, network, "warn"), binary)
	return err
}

// isthmus runs a command of ours. What export prints goes to NODE.yaml.
func (w *world) isthmus(args ...string) error {
	cmd := exec.Command(filepath.Join(w.bin, "isthmus"), args...)
	cmd.Dir, cmd.Stderr = w.space.Dir, os.Stderr
	out, err := cmd.Output()
	if err == nil && args[0] == "export" {
		err = os.WriteFile(filepath.Join(w.space.Dir, args[len(args)-1]+".yaml"), out, 0o600)
	}
	if err != nil {
		return fmt.Errorf("isthmus %v: %w", args, err)
	}
	return nil
}
