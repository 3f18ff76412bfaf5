package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/isthmus-mesh/isthmus/drill/measure"
)

// Save writes drill.json and report.html to dir.
func Save(r *measure.Result, dir string) error {
	data, err := JSON(r)
	if err != nil {
		return err
	}
	page, err := HTML(r)
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

// JSON returns drill.json.
func JSON(r *measure.Result) ([]byte, error) {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode drill.json: %w", err)
	}
	return append(b, '\n'), nil
}
