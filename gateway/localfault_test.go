package gateway

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/isthmus-mesh/isthmus/gateway/picker"
	"github.com/isthmus-mesh/isthmus/internal/localfault"
)

// A dial that fails on this host counts against no pod, whatever the errno and the call.
func TestLocalFailuresCountAgainstNoPod(t *testing.T) {
	b := &backends{late: func(time.Time) bool { return false }}
	for _, call := range []string{"socket", "setsockopt", "bind", "connect"} {
		for errno := syscall.Errno(1); errno <= 133; errno++ {
			err := error(&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError(call, errno)})
			local := localfault.Is(err)
			if got := dialReason(err); (got == attemptLocal) != local {
				t.Errorf("%v: reason %s, local %t", err, got, local)
			}
			if got := b.answerOf(err, probeReason(err), time.Now()); (got == picker.NotAsked) != local {
				t.Errorf("%v: a probe has answer %v, local %t", err, got, local)
			}
		}
	}
}
