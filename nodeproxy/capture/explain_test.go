//go:build linux

package capture

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Who may not enter a pod is not helped by the right to set rules.
func TestTheRightThatIsMissingIsNamed(t *testing.T) {
	for want, err := range map[string]error{
		"give this process the capability SYS_ADMIN (": fmt.Errorf("dial: %w", os.NewSyscallError("setns", unix.EPERM)),
		"give this process the capability NET_ADMIN":   os.NewSyscallError("sendmsg", unix.EPERM),
	} {
		if got := explain(err); got == nil || !strings.Contains(got.Error(), want) {
			t.Errorf("%v: %v, want %q in it", err, got, want)
		}
	}
}
