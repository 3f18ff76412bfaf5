package secretfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// allowed is the rule of Read, bit by bit.
func allowed(mode fs.FileMode, own, volume bool) bool {
	groupReads, groupWrites, othersRead, othersWrite := mode&0o040 != 0, mode&0o020 != 0, mode&0o004 != 0, mode&0o002 != 0
	if groupWrites || othersWrite {
		return false
	}
	if volume {
		return true
	}
	return !othersRead && !(groupReads && own)
}

// Every mode is tried with an own file and with that of another user, in a volume of the kubelet
// and elsewhere.
func TestReadAppliesOneRuleToModes(t *testing.T) {
	owners := []bool{true}
	if os.Geteuid() == 0 {
		owners = append(owners, false)
	}
	for _, own := range owners {
		for _, volume := range []bool{false, true} {
			dir := t.TempDir()
			path, file := filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.pem")
			if volume {
				file = filepath.Join(dir, "..2026_11_27_20_00_00.123456789", "key.pem")
				if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o755), os.Symlink(filepath.Base(filepath.Dir(file)), filepath.Join(dir, "..data")), os.Symlink("..data/key.pem", path)); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
				t.Fatal(err)
			}
			if !own {
				if err := os.Chown(file, 12345, 0); err != nil {
					t.Fatal(err)
				}
			}
			for mode := fs.FileMode(0o400); mode <= 0o777; mode++ {
				if err := os.Chmod(file, mode); err != nil {
					t.Fatal(err)
				}
				b, err := Read(path)
				if mode&0o400 == 0 && os.Geteuid() != 0 {
					continue
				}
				what := fmt.Sprintf("mode %04o, own %t, volume %t", mode, own, volume)
				if want := allowed(mode, own, volume); want != (err == nil) {
					t.Errorf("%s: %v; want allowed=%t", what, err, want)
				} else if want && string(b) != "secret" {
					t.Errorf("%s: read %q", what, b)
				} else if !want && (!strings.Contains(err.Error(), fmt.Sprintf("%s has mode %04o", path, mode)) || !strings.Contains(err.Error(), "chmod 600 "+path)) {
					t.Errorf("%s: %v; want file, mode and remedy", what, err)
				}
			}
		}
	}
}

// Every mode of the directory is tried, with and without the sticky and the setgid bit: of the file
// itself and of the one to which a link leads.
func TestReadRefusesDirectoriesThatOthersWrite(t *testing.T) {
	for _, linked := range []bool{false, true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "key.pem")
		if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if linked {
			link := filepath.Join(t.TempDir(), "key.pem")
			if err := os.Symlink(path, link); err != nil {
				t.Fatal(err)
			}
			path = link
		}
		for _, special := range []fs.FileMode{0, fs.ModeSticky, fs.ModeSetgid, fs.ModeSticky | fs.ModeSetgid} {
			for mode := fs.FileMode(0o700); mode <= 0o777; mode++ {
				if err := os.Chmod(dir, mode|special); err != nil {
					t.Fatal(err)
				}
				_, err := Read(path)
				if want := mode&0o002 == 0 || special&fs.ModeSticky != 0; want != (err == nil) {
					t.Errorf("mode %v, linked %t: %v; want allowed=%t", mode|special, linked, err, want)
				} else if !want && (!strings.Contains(err.Error(), fmt.Sprintf("%s has mode %04o", dir, mode)) || !strings.Contains(err.Error(), "chmod o-w "+dir)) {
					t.Errorf("mode %v, linked %t: %v; want directory, mode and remedy", mode|special, linked, err)
				}
			}
		}
	}
}

// A volume of a Secret, as the kubelet makes it: a directory of mode 3777, files of mode 0640 for
// fsGroup behind two links.
func TestReadAcceptsSecretVolume(t *testing.T) {
	dir := t.TempDir()
	payload := filepath.Join(dir, "..2026_11_27_20_00_00.123456789")
	if err := errors.Join(os.Mkdir(payload, 0o755), os.Symlink(filepath.Base(payload), filepath.Join(dir, "..data")), os.Symlink("..data/key.pem", filepath.Join(dir, "key.pem")),
		os.WriteFile(filepath.Join(payload, "key.pem"), []byte("secret"), 0o640), os.Chmod(payload, 0o755|fs.ModeSetgid)); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []fs.FileMode{0o777 | fs.ModeSticky, 0o777 | fs.ModeSticky | fs.ModeSetgid} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(filepath.Join(dir, "key.pem")); err != nil {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

func TestReadReportsMissingAndLargeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key.pem")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v; want fs.ErrNotExist", err)
	}
	if err := os.WriteFile(path, make([]byte, MaxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("%v; want that it is too large", err)
	}
}
