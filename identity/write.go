package identity

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/internal/tempfile"
)

const (
	secretMode = 0o600
	publicMode = 0o644
	dirMode    = 0o700
)

// replaceFile puts data at path in one step: a reader sees the old content or
// the new, never a part, and a crash leaves one of them.
func replaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

// createFile is replaceFile that fails with fs.ErrExist if path is there, also
// when two processes race.
func createFile(path string, data []byte, mode fs.FileMode) error {
	tmp, err := writeTemp(path, data, mode)
	if err != nil {
		return err
	}
	err = os.Link(tmp, path)
	if err = errors.Join(err, os.Remove(tmp)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// writeTemp leaves data in a complete, synced file beside path. It is 0600 from
// its first byte on.
func writeTemp(path string, data []byte, mode fs.FileMode) (name string, err error) {
	f, err := tempfile.Create(path)
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockDir keeps other writers out of dir until unlock is called; it waits for
// them. Readers are not concerned. The lock dies with the process.
func lockDir(dir string) (unlock func() error, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(d.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return d.Close, nil
}
