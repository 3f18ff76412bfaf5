package tempfile

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// What crashes have left of one file goes when that is written again; what is being written stays, as does
// everything else in the directory, whatever its name.
func TestLeftoversOfTheSameFileGo(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-leftFor)
	for name, at := range map[string]time.Time{
		".cache.1": old, ".cache.4294967295": old, // left
		".cache.2": time.Now(), // being written
		"cache":    old, ".cache.": old, ".cache.bak": old, ".cache.1a": old, ".other.1": old, ".cache2.1": old, "cache.1": old,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".cache.3"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(dir, ".cache.3"), old, old); err != nil {
		t.Fatal(err)
	}
	f, err := Create(filepath.Join(dir, "cache"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 || filepath.Dir(f.Name()) != dir {
		t.Errorf("%s, %v, %v; want a file of mode 0600 beside it", f.Name(), info.Mode(), err)
	}
	var got []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(f.Name()) {
			got = append(got, e.Name())
		}
	}
	want := []string{".cache.", ".cache.1a", ".cache.2", ".cache.3", ".cache.bak", ".cache2.1", ".other.1", "cache", "cache.1"}
	if !slices.Equal(got, want) {
		t.Errorf("there are %q, want %q", got, want)
	}
}
