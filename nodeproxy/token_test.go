package nodeproxy

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// Health streams of several gateways read a token that others may write. One line of the log
// names it, and one more after it was readable.
func TestTokenFailureIsLoggedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	var log bytes.Buffer
	read := Federation{Token: path}.token(zerolog.New(&log))
	lines := func(want int) {
		t.Helper()
		if got := strings.Count(log.String(), `federation.token: `); got != want {
			t.Errorf("%d lines name the token, want %d:\n%s", got, want, log.String())
		}
	}
	for range 3 {
		if _, err := read(context.Background()); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("without the file: %v", err)
		}
	}
	lines(1)
	if err := os.WriteFile(path, []byte(" abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := read(context.Background()); string(b) != "abc" || err != nil {
		t.Errorf("token %q, %v", b, err)
	}
	lines(1)
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := read(context.Background()); err == nil || !strings.Contains(err.Error(), "mode 0666") {
			t.Errorf("mode 0666: %v", err)
		}
	}
	lines(2)
	if (Federation{}).token(zerolog.Nop()) != nil {
		t.Error("a token is read without federation.token")
	}
}
