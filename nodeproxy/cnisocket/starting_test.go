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

// Two node proxies that start at once leave each other's sockets alone: one is bound before it listens, and refuses meanwhile.
func TestASocketThatDoesNotListenYetIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	own := path + ".0123456789abcdef"
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: own}))
	other, err := Listen(path, &node{}, func(error) {})
	must(t, err)
	defer other.Close()
	must(t, unix.Listen(fd, 1))
	if err := os.Rename(own, path); err != nil { // as Run does
		t.Fatalf("the socket of the process that was starting is gone: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	heard := make(chan error, 1)
	go func() {
		c, _, err := unix.Accept(fd)
		if err == nil {
			unix.Close(c)
		}
		heard <- err
	}()
	Ask(ctx, path, request(Check), nil)
	must(t, <-heard)
}
