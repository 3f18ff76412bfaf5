//go:build linux

package capture

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A table is replaced only where what is there is not ours, or too much to be taken out by name: for want of memory, or of
// a right, it is left as it is.
func TestATableIsReplacedOnlyWhereItIsNotAsOurs(t *testing.T) {
	for _, row := range []struct {
		fails []error // one try after the other
		tries int
		err   error
	}{
		{nil, 1, nil},
		{[]error{unix.ENOENT}, 2, nil},
		{[]error{fmt.Errorf("conn.Receive: %w", os.NewSyscallError("recvmsg", unix.EINVAL)), unix.EEXIST}, 3, nil},
		{[]error{unix.EBUSY, unix.EEXIST, unix.ENOMEM}, 3, unix.ENOMEM},
		{[]error{unix.ENOBUFS, unix.EEXIST}, 3, nil},
		{[]error{fmt.Errorf("SendMessages: %w", os.NewSyscallError("sendmsg", unix.EMSGSIZE)), unix.EEXIST}, 3, nil},
		{[]error{errNotAsOurs, unix.EEXIST}, 3, nil},
		{[]error{unix.ENOMEM}, 1, unix.ENOMEM},
		{[]error{unix.EPERM}, 1, unix.EPERM},
		{[]error{unix.ENOENT, unix.ENOMEM}, 2, unix.ENOMEM},
	} {
		tries := 0
		err := begun(func(beginning) error {
			tries++
			if tries <= len(row.fails) {
				return row.fails[tries-1]
			}
			return nil
		})
		if tries != row.tries || !errors.Is(err, row.err) {
			t.Errorf("where tries fail with %v there are %d, and the last says %v; want %d and %v", row.fails, tries, err, row.tries, row.err)
		}
	}
}
