package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// readFinished returns when the last rotation in dir was finished.
func readFinished(dir string) (time.Time, error) {
	path := filepath.Join(dir, FinishedFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	t, err := time.Parse(time.RFC3339, strings.TrimSpace(string(b)))
	if err != nil {
		return time.Time{}, fmt.Errorf("%s: %.80q: want the time of the last `isthmus network rotate --finish`, as 2006-01-02T15:04:05Z", path, b)
	}
	return t.UTC(), nil
}

func removeFinished(dir string) error {
	if err := os.Remove(filepath.Join(dir, FinishedFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
