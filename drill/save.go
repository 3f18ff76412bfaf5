package drill

import (
	"fmt"
	"os"
	"path/filepath"
)

// Save writes drill.json and report.html to dir.
func Save(r *Result, dir string) error {
	data, err := r.Encode()
	if err != nil {
		return err
	}
	page, err := r.Report()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the output folder: %w", err)
	}
	for name, b := range map[string][]byte{"drill.json": data, "report.html": page} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
