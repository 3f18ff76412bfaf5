//go:build linux

package cniinstall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/isthmus-mesh/isthmus/nodeproxy/cniplugin"
)

// maxConf bounds a network configuration: those that there are have some kilobytes.
const maxConf = 1 << 20

// errChanged is that of a configuration that somebody else has written since it was read: it is as they wrote it.
var errChanged = errors.New("somebody else is writing it")

// conf is a network configuration as it was read. It is replaced and removed only while it still is that, as the node's
// CNI writes it too, by another name or in place, and mostly once.
type conf struct {
	path string
	text []byte
	file *os.File // as long as it is open no other file has its inode
	stat unix.Stat_t
}

// open reads a configuration, which the caller closes.
func open(path string) (_ *conf, err error) {
	c := &conf{path: path}
	if c.file, err = openFile(path); err != nil {
		return nil, err
	}
	if err = unix.Fstat(int(c.file.Fd()), &c.stat); err == nil {
		c.text, err = c.read()
	}
	if err == nil && len(c.text) > maxConf {
		err = fmt.Errorf("%s is longer than %d bytes: it is no network configuration", path, maxConf)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// openFile opens a file for reading, and nothing else: a pipe would be waited for, for ever.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file (%v): delete it, or give it another name", path, st.Mode())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (c *conf) close() { c.file.Close() }

// read returns what is in the file now.
func (c *conf) read() ([]byte, error) { return io.ReadAll(io.NewSectionReader(c.file, 0, maxConf+1)) }

func (c *conf) mode() fs.FileMode { return fs.FileMode(c.stat.Mode).Perm() }

// replace has another text take its place; with errChanged it is as somebody else has written it. Runtimes see the one
// or the other.
func (c *conf) replace(text []byte) error {
	temp, err := c.beside(c.path, text)
	if err != nil {
		return err
	}
	ino, err := inode(temp)
	if err != nil {
		return err
	}
	name := tempName(c.path, c.stat.Ino, ino)
	if err := os.Rename(temp, name); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	leased, err := c.lease()
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	defer c.release()
	replaced, err := swap(name, c.path, c.stat.Ino, func() bool { return c.unchanged(leased) })
	switch {
	case err == nil && replaced:
		return os.Remove(name)
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return errors.Join(errChanged, ignoreAbsent(os.Remove(name)))
	case !errors.Is(err, errors.ErrUnsupported):
		return err // what name is then clear finds out
	}
	// The file system cannot exchange: there is a moment between the two, if a short one.
	if now, err := inode(c.path); err != nil || now != c.stat.Ino || !c.unchanged(leased) {
		return errors.Join(errChanged, os.Remove(name))
	}
	return os.Rename(name, c.path)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// remove takes it away; with errChanged it is as somebody else has written it.
func (c *conf) remove() error {
	leased, err := c.lease()
	if err != nil {
		return err
	}
	defer c.release()
	name := tempName(c.path, c.stat.Ino, 0)
	if err := os.Rename(c.path, name); errors.Is(err, fs.ErrNotExist) {
		return errChanged
	} else if err != nil {
		return err
	}
	if is, err := inode(name); err != nil {
		return err
	} else if is == c.stat.Ino && c.unchanged(leased) {
		return os.Remove(name)
	}
	return errors.Join(errChanged, putBack(name, c.path))
}

// create writes another configuration, of the same mode, where there is none; with errChanged there is one.
func (c *conf) create(path string, text []byte) error {
	temp, err := c.beside(path, text)
	if err != nil {
		return err
	}
	if err = renameNew(temp, path); err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrExist) {
		err = errChanged
	}
	return errors.Join(err, os.Remove(temp))
}

// beside writes a file that will have the name path.
func (c *conf) beside(path string, text []byte) (string, error) {
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+left+"new")
	os.Remove(name) // that of a process that was killed
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, c.own(f), f.Chmod(c.mode()), f.Sync(), f.Close()); err != nil {
		os.Remove(name)
	}
	return name, err
}

// own gives a file the owner and group of the configuration: who may read and write that goes on to.
func (c *conf) own(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid == c.stat.Uid && st.Gid == c.stat.Gid {
		return err
	}
	if err := unix.Fchown(int(f.Fd()), int(c.stat.Uid), int(c.stat.Gid)); err != nil {
		return fmt.Errorf("%s is of user %d and group %d, and cannot be kept so: %w: make it one of user %d and group %d, as plugins are run by root anyway", c.path, c.stat.Uid, c.stat.Gid, err, st.Uid, st.Gid)
	}
	return nil
}

// lease has whoever opens the file for writing wait until release; with errChanged somebody has it open. It reports
// whether there is a lease: some file systems have none, nor have files of other users for who lacks CAP_LEASE.
func (c *conf) lease() (bool, error) {
	_, err := unix.FcntlInt(c.file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if errors.Is(err, unix.EAGAIN) {
		return false, errChanged
	}
	return err == nil, nil
}

func (c *conf) release() { unix.FcntlInt(c.file.Fd(), unix.F_SETLEASE, unix.F_UNLCK) }

// unchanged reports whether the file is as it was read, and nobody waits to write it.
func (c *conf) unchanged(leased bool) bool {
	if text, err := c.read(); err != nil || !bytes.Equal(text, c.text) {
		return false
	}
	if !leased {
		return true
	}
	has, err := unix.FcntlInt(c.file.Fd(), unix.F_GETLEASE, 0)
	return err == nil && has == unix.F_RDLCK
}

// swap exchanges the files temp and path, and reports whether the one that was at path had the inode was, and fine says that it
// is still what it should be. If not, both are exchanged again: at path is then what somebody else has put there last.
func swap(temp, path string, was uint64, fine func() bool) (bool, error) {
	put, err := inode(temp)
	if err != nil {
		return false, err
	}
	for swapped := true; ; swapped = false {
		if err := exchange(temp, path); err != nil {
			return false, err
		}
		got, err := inode(temp)
		if err != nil {
			return false, err
		}
		if got == was && (!swapped || fine()) {
			return swapped, nil
		}
		was, put = put, got
	}
}

// exchange is a variable for tests of file systems that have it not.
var exchange = func(a, b string) error { return rename(a, b, unix.RENAME_EXCHANGE) }

// rename has an error that is errors.ErrUnsupported where the file system does not know the flag.
func rename(from, to string, flag uint) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, flag)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = fmt.Errorf("%w (%w)", errors.ErrUnsupported, err)
	}
	if err != nil {
		return &os.LinkError{Op: "renameat2", Old: from, New: to, Err: err}
	}
	return nil
}

// renameNew renames a file, but over no other: that is fs.ErrExist.
func renameNew(from, to string) error {
	err := rename(from, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, errors.ErrUnsupported) {
		if err = os.Link(from, to); err == nil {
			err = os.Remove(from)
		}
	}
	return err
}

// putBack gives a file the name again that it had, unless there is another one by now, which is newer.
func putBack(temp, path string) error {
	err := renameNew(temp, path)
	if errors.Is(err, fs.ErrExist) {
		err = os.Remove(temp)
	}
	return err
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// left is in the names of files that take the place of others. Behind it comes nothing that runtimes look for.
const left = ".isthmus-"

// tempName is what a file is called while it is exchanged: by the inodes of the one that was read and of the one that is to be
// there, 0 for none, one that finds it knows what it is.
func tempName(path string, was, put uint64) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s%s%d-%d", filepath.Base(path), left, was, put))
}

var leftName = regexp.MustCompile(`^\.(.+)` + regexp.QuoteMeta(left) + `(?:new|([0-9]+)-([0-9]+))$`)

// clear takes away what processes have left that were killed. What somebody wrote in the moment in which they were gets its
// name again. Nobody else of ours is at work in dir meanwhile.
func clear(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if m := leftName.FindStringSubmatch(e.Name()); m != nil && e.Type().IsRegular() {
			was, _ := strconv.ParseUint(m[2], 10, 64)
			put, _ := strconv.ParseUint(m[3], 10, 64)
			errs = append(errs, clearOne(filepath.Join(dir, e.Name()), filepath.Join(dir, m[1]), was, put))
		}
	}
	return errors.Join(errs...)
}

func clearOne(temp, path string, was, put uint64) error {
	is, err := inode(temp)
	if err != nil {
		return err
	}
	theirs := was != 0 && is != was && is != put
	now, err := inode(path)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case theirs && put == 0 && missing:
		return putBack(temp, path)
	case theirs && err == nil && now == put:
		if _, err := swap(temp, path, put, func() bool { return true }); err != nil {
			return err
		}
	}
	return os.Remove(temp)
}

// Bounds of waiting for others.
const (
	lockWithin = 5 * time.Second
	tries      = 20
	pause      = 10 * time.Millisecond
)

// locked does it while nobody else of ours, such as the process that takes over from this one, is at work in dir.
func locked(dir string, do func() error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // and so the lock
	for end := time.Now().Add(lockWithin); ; time.Sleep(pause) {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) { // a file system without locks has no say
			return do()
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: another %s has been at work there for %v: end the one that hangs", dir, cniplugin.Type, lockWithin)
		}
	}
}

// retried does it again where somebody else has written meanwhile.
func retried(path string, do func() error) error {
	for range tries {
		if err := do(); !errors.Is(err, errChanged) {
			return err
		}
		time.Sleep(pause)
	}
	return fmt.Errorf("%s: %w, and has it open, or does so again and again: it is left as it is until that ends", path, errChanged)
}
