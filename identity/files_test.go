package identity

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

func writeSVID(t testing.TB, dir string, s *SVID) (certPath, keyPath string) {
	t.Helper()
	if err := WriteSVID(dir, s); err != nil {
		t.Fatal(err)
	}
	_, certPath, keyPath, err := FileSource{Dir: dir}.paths(s.ID)
	if err != nil {
		t.Fatal(err)
	}
	return certPath, keyPath
}

func TestFilesRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "svids")
	want := issueSVID(t, memoryCA(t, meshTD), cartID, time.Hour)
	_, keyPath := writeSVID(t, dir, want)
	got, err := FileSource{Dir: dir}.Fetch(t.Context(), cartID)
	if err != nil {
		t.Fatal(err)
	}
	if !got.same(want) || got.ID != cartID {
		t.Errorf("read %q, serial %x: not what was written", got.ID, got.Certificates[0].SerialNumber)
	}
	wantMode(t, keyPath, 0o600)
	for _, d := range []string{dir, filepath.Dir(keyPath), filepath.Dir(filepath.Dir(keyPath))} {
		wantMode(t, d, 0o700)
	}
	entries, err := os.ReadDir(filepath.Dir(keyPath))
	if err != nil || len(entries) != 2 {
		t.Errorf("%d files beside the key (%v), want cert.pem and key.pem only", len(entries), err)
	}
}

// Check fails while any file of an identity is missing, no PEM file, or a key that others may
// read, and names the file. It passes with all files.
func TestCheckReadsIdentityFiles(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"missing":      os.Remove,
		"empty":        func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"no PEM":       func(path string) error { return os.WriteFile(path, []byte("garbage"), 0o600) },
		"world access": func(path string) error { return os.Chmod(path, 0o666) },
	} {
		for _, file := range []string{"cert.pem", "key.pem", "bundle.pem"} {
			dir := t.TempDir()
			certPath, keyPath := writeSVID(t, dir, issueSVID(t, memoryCA(t, meshTD), cartID, time.Hour))
			m := NewManager(FileSource{Dir: dir}, zerolog.Nop())
			if err := m.Check(cartID); err != nil {
				t.Fatalf("all files are there: %v", err)
			}
			path := map[string]string{"cert.pem": certPath, "key.pem": keyPath, "bundle.pem": filepath.Join(dir, "bundle.pem")}[file]
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			err := m.Check(cartID)
			if public := name == "world access" && file != "key.pem"; public != (err == nil) {
				t.Errorf("%s of %s: %v", file, name, err)
			} else if err != nil && !strings.Contains(err.Error(), path) {
				t.Errorf("%s of %s: %v; want an error that names %s", file, name, err, path)
			}
		}
	}
}

func TestRewrittenKeyIsNeverReadableByOthers(t *testing.T) {
	dir := t.TempDir()
	ca := memoryCA(t, meshTD)
	_, keyPath := writeSVID(t, dir, issueSVID(t, ca, cartID, time.Hour))
	if err := os.Chmod(keyPath, 0o666); err != nil {
		t.Fatal(err)
	}
	writeSVID(t, dir, issueSVID(t, ca, cartID, time.Hour))
	wantMode(t, keyPath, 0o600)
}

func TestFileErrorsSayWhatToDo(t *testing.T) {
	ca, foreign := memoryCA(t, meshTD), memoryCA(t, otherTD)
	cart := issueSVID(t, ca, cartID, time.Hour)
	strayKey, err := encodeKey(issueSVID(t, ca, cartID, time.Hour).PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), data, 0o600) }
	}
	certName, keyName := filepath.Join("shop", "cart", "cert.pem"), filepath.Join("shop", "cart", "key.pem")
	for name, c := range map[string]struct {
		harm func(dir string) error
		want []string
	}{
		"no bundle":            {func(d string) error { return os.Remove(filepath.Join(d, "bundle.pem")) }, []string{"bundle.pem", "isthmus ca issue"}},
		"no certificate":       {func(d string) error { return os.Remove(filepath.Join(d, certName)) }, []string{"cert.pem", cartID.String(), "isthmus ca issue"}},
		"no key":               {func(d string) error { return os.Remove(filepath.Join(d, keyName)) }, []string{"key.pem", "isthmus ca issue --dir ", "--out ", "--id " + cartID.String()}},
		"text for bundle":      {write("bundle.pem", []byte("hello")), []string{"bundle.pem", "no PEM block found"}},
		"empty bundle":         {write("bundle.pem", nil), []string{"bundle.pem", "empty"}},
		"leaf as bundle":       {write("bundle.pem", EncodeCertificates(cart.Certificates...)), []string{"bundle.pem", "no CA certificate"}},
		"bundle of other mesh": {write("bundle.pem", EncodeCertificates(foreign.cert)), []string{"bundle.pem", `"other.example"`, `"cluster.local"`}},
		"root without issuer":  {write("bundle.pem", EncodeCertificates(memoryCA(t, meshTD).cert)), []string{"cert.pem", "root that issued it"}},
		"broken certificate":   {write(certName, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")), []string{"cert.pem", "block 1"}},
		"cut-off certificate":  {write(certName, EncodeCertificates(cart.Certificates...)[:200]), []string{"cert.pem", "cut off"}},
		"key as certificate":   {write(certName, strayKey), []string{"cert.pem", `"PRIVATE KEY"`}},
		"certificate as key":   {write(keyName, EncodeCertificates(cart.Certificates...)), []string{"key.pem", `"CERTIFICATE"`}},
		"two keys":             {write(keyName, append(append([]byte(nil), strayKey...), strayKey...)), []string{"key.pem", "2 PEM blocks"}},
		"garbage key":          {write(keyName, []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")), []string{"key.pem", "issue"}},
		"another's identity":   {write(certName, EncodeCertificates(issueSVID(t, ca, strayID, time.Hour).Certificates...)), []string{"cert.pem", strayID.String(), cartID.String()}},
		"huge file":            {write(certName, make([]byte, maxFileBytes+1)), []string{"cert.pem", "larger than"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			writeSVID(t, dir, cart)
			if err := c.harm(dir); err != nil {
				t.Fatal(err)
			}
			_, err := FileSource{Dir: dir}.Fetch(t.Context(), cartID)
			wantError(t, err, c.want...)
		})
	}
}

func TestMismatchedKeyIsWaitedForThenReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ca := memoryCA(t, meshTD)
		certPath, keyPath := writeSVID(t, dir, issueSVID(t, ca, cartID, time.Hour))
		newer := issueSVID(t, ca, cartID, time.Hour)
		key, err := encodeKey(newer.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(keyPath, key, 0o600); err != nil {
			t.Fatal(err)
		}

		start := time.Now()
		_, err = FileSource{Dir: dir}.Fetch(t.Context(), cartID)
		wantError(t, err, certPath, cartID.String(), "private key does not belong", "issue both again")
		if got, want := time.Since(start), (mismatchReads-1)*mismatchPause; got != want {
			t.Errorf("gave up after %s, want %s", got, want)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 2*mismatchPause)
		defer cancel()
		if _, err := (FileSource{Dir: dir}).Fetch(ctx, cartID); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: the caller's deadline was not kept", err)
		}

		go func() {
			time.Sleep(3 * mismatchPause)
			if err := replaceFile(certPath, EncodeCertificates(newer.Certificates...), 0o644); err != nil {
				t.Error(err)
			}
		}()
		s, err := FileSource{Dir: dir}.Fetch(t.Context(), cartID)
		if err != nil || !s.same(newer) {
			t.Errorf("the finished rotation was not read: %v", err)
		}
	})
}

func TestReaderNeverSeesAHalfWrittenFile(t *testing.T) {
	dir := t.TempDir()
	ca := memoryCA(t, meshTD)
	writeSVID(t, dir, issueSVID(t, ca, cartID, time.Hour))
	stop, done := make(chan struct{}), make(chan error, 2)
	for range 2 { // two writers must not mix their files either
		go func() {
			for {
				s, err := ca.Issue(cartID, time.Hour)
				if err == nil {
					err = WriteSVID(dir, s)
				}
				select {
				case <-stop:
					done <- err
					return
				default:
				}
				if err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for i := range 100 {
		// read, not Fetch: a mismatch is the only thing that may be seen
		if _, err := (FileSource{Dir: dir}).read(cartID); err != nil && !errors.Is(err, errKeyMismatch) {
			t.Fatalf("read %d: %v", i, err)
		}
	}
	close(stop)
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (FileSource{Dir: dir}).read(cartID); err != nil {
		t.Errorf("after the last writer: %v", err)
	}
}

func TestCreateFileNeverReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := createFile(path, []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := createFile(path, []byte("b"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("%v, want fs.ErrExist", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "a" {
		t.Errorf("content is %q", got)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 1 {
		t.Errorf("%d files stayed, want 1", len(left))
	}
}

func TestFingerprintFollowsEveryFile(t *testing.T) {
	dir := t.TempDir()
	ca := memoryCA(t, meshTD)
	src := FileSource{Dir: dir}
	last := src.Fingerprint(cartID) // nothing there yet
	s := issueSVID(t, ca, cartID, time.Hour)
	certPath, keyPath := writeSVID(t, dir, s)
	for _, path := range []string{"", filepath.Join(dir, "bundle.pem"), certPath, keyPath} {
		if path != "" {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := replaceFile(path, append(data, '\n'), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := src.Fingerprint(cartID); got == last {
			t.Errorf("fingerprint did not change with %q", path)
		} else {
			last = got
		}
	}
	if got := src.Fingerprint(cartID); got != last {
		t.Error("fingerprint changed with nothing")
	}
	if got := src.Fingerprint(spiffeid.RequireFromString("spiffe://cluster.local/x")); got != "" {
		t.Errorf("fingerprint of a foreign form is %q", got)
	}
}
