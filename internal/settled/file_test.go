package settled

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Whatever the clock of its server shows, a file is alone when nobody has written to it
// for a pause, and not before; where that clock is behind, its times say so too early.
func TestAFileIsAloneAfterAPause(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	path := filepath.Join(t.TempDir(), "file")
	look := func(f *File, modified time.Time, now time.Time) bool {
		t.Helper()
		if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return f.Alone(info, now)
	}
	for _, ahead := range []time.Duration{0, Pause / 2, Pause, time.Minute, 365 * 24 * time.Hour} {
		f := &File{}
		written := now.Add(ahead) // as the server dates it
		if look(f, written, now) {
			t.Errorf("%v ahead: alone as soon as it is written", ahead)
		}
		if look(f, written, now.Add(Pause-1)) {
			t.Errorf("%v ahead: alone before a pause", ahead)
		}
		if !look(f, written, now.Add(Pause)) {
			t.Errorf("%v ahead: not alone after a pause", ahead)
		}
		if look(f, written.Add(2*Pause), now.Add(2*Pause)) {
			t.Errorf("%v ahead: alone though it was written to again", ahead)
		}
	}
	if !look(&File{}, now.Add(-Pause), now) {
		t.Error("not alone when first seen a pause after it was written")
	}
}
