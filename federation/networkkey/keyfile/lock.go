package keyfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// lock keeps others who change dir out until unlock is called; it waits for them. Who
// reads needs none: every file is replaced whole, and in an order in which what is there
// can be used. The kernel releases it when the process dies. Where there is no directory
// there is nothing to lock.
func lock(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			break
		}
	}
	// Not every file system can: NFS locks no directory.
	if err != nil && !errors.Is(err, errors.ErrUnsupported) && !slices.Contains([]error{syscall.EBADF, syscall.EINVAL, syscall.ENOLCK}, err) {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return func() { _ = d.Close() }, nil // nothing was written to it
}
