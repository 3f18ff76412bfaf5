//go:build linux

package cnisocket

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// While a node proxy has no descriptor left for the network namespace of a pod it has the plugin ask again: that makes sense, and
// the pod is not to start without capture for it.
func TestWhoHasNoRoomForTheNamespaceIsAskedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	s, err := Listen(path, &node{}, func(error) {})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	file, err := os.Open("/proc/self/ns/net")
	must(t, err)
	defer file.Close()
	ask := func() Reply {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for {
			reply, err := Ask(ctx, path, request(Add), file)
			if err == nil || ctx.Err() != nil {
				must(t, err)
				return reply
			}
		}
	}
	want := ask()
	var was unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	limit := uint64(0)
	for n := 2; n > 0; limit++ { // both ends of a connection
		if _, err := unix.FcntlInt(uintptr(limit), unix.F_GETFD, 0); err != nil {
			n--
		}
	}
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: was.Max}, nil))
	got := ask()
	must(t, unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil))
	if got.Verdict != Stopping || got.Reason == "" {
		t.Errorf("the reply is %+v, want one by which the plugin asks again, and why", got)
	}
	if got := ask(); got != want {
		t.Errorf("with descriptors again it is %+v, want %+v", got, want)
	}
	cancel()
	must(t, <-ended)
}
