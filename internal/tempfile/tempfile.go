// Package tempfile makes the files that are written beside another one and then take its place.
//
// It promises that what a crash leaves of them is removed when the same file is written again: a process
// that is killed while it writes, over and over, fills no disk, and no copy of a key stays behind for longer.
package tempfile

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// leftFor is how old one is that nobody writes any more: writes take seconds.
const leftFor = time.Minute

// Create makes an empty file of mode 0600 beside path, for the caller to write, rename or remove, and removes
// those of before that nobody has for leftFor.
func Create(path string) (*os.File, error) {
	dir, prefix := filepath.Dir(path), "."+filepath.Base(path)+"."
	f, err := os.CreateTemp(dir, prefix+"*")
	if err != nil {
		return nil, err
	}
	removeLeft(dir, prefix, time.Now())
	return f, nil
}

// removeLeft removes what it can: what stays is no fault of the caller's write.
func removeLeft(dir, prefix string, now time.Time) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		random, ours := strings.CutPrefix(e.Name(), prefix)
		if !ours || random == "" || strings.Trim(random, "0123456789") != "" || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && now.Sub(info.ModTime()) >= leftFor {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
