//go:build linux

package cnisocket

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What stands at the path of the socket and is none of ours stays as it is.
func TestNothingOfOthersIsReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		make func(path string) error
		want string
	}{
		"a file":      {func(p string) error { return os.WriteFile(p, []byte("127.0.0.1 localhost\n"), 0o644) }, "is there and is no socket"},
		"a directory": {func(p string) error { return os.Mkdir(p, 0o755) }, "is a directory: name the socket in it"},
		"a link":      {func(p string) error { return os.Symlink("/nonesuch/file", p) }, "is there and is no socket"},
		"a stream socket": {func(p string) error {
			l, err := net.Listen("unix", p)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, "is the socket of another program"},
		"a datagram socket": {func(p string) error {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: p})
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, "is the socket of another program"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cni.sock")
			must(t, c.make(path))
			before, err := os.Lstat(path)
			must(t, err)
			s, err := Listen(path, &node{}, func(error) {})
			if err == nil {
				s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("listen: %v, want that it %s", err, c.want)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it is another file now, or none: %v", err)
			}
			if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
				t.Errorf("beside it is left %v", list)
			}
		})
	}
}

// A file that appears between the start and the moment in which the socket takes its name is not replaced either.
func TestWhatCameMeanwhileIsNotReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	s, err := Listen(path, &node{}, func(error) {})
	must(t, err)
	must(t, os.WriteFile(path, []byte("x"), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := s.Run(ctx); err == nil || !strings.Contains(err.Error(), "is there and is no socket") {
		t.Errorf("it runs: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "x" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// Beside the socket only those of processes that were killed are removed: by what they are and by their whole name.
func TestFilesBesideTheSocketAreLeftAlone(t *testing.T) {
	for _, base := range []string{"x", "x[1]"} { // no pattern
		dir := t.TempDir()
		at := func(end string) string { return filepath.Join(dir, base+end) }
		socket := func(path string) string {
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: path})
			must(t, err)
			l.SetUnlinkOnClose(false)
			l.Close()
			return path
		}
		file, directory, named := at(".conf"), at(".d"), at(".0123456789abcdef")
		must(t, os.WriteFile(file, nil, 0o644))
		must(t, os.WriteFile(named, nil, 0o644))
		must(t, os.Mkdir(directory, 0o755))
		stay := []string{file, directory, named, socket(at(".sock")), socket(at(".0123456789ABCDEF")), socket(at(".0123456789abcdef0")), socket(filepath.Join(dir, "x1.0123456789abcdef"))}
		dead := socket(at(".fedcba9876543210"))
		before := time.Now().Add(-time.Hour)
		for _, path := range append(stay, dead) {
			must(t, os.Chtimes(path, before, before))
		}
		s, err := Listen(at(""), &node{}, func(error) {})
		must(t, err)
		defer s.Close()
		for _, path := range stay {
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("it is gone: %v", err)
			}
		}
		if _, err := os.Lstat(dead); err == nil {
			t.Errorf("%s of a dead process is left", dead)
		}
	}
}
