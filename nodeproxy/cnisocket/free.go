//go:build linux

package cnisocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Free has an error if something stands at path that a server may not replace: a file, a directory, a link, or a socket
// at which a program of another kind listens. A server that runs there, or has, is none.
func Free(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory: name the socket in it, such as %s/cni.sock", path, path)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("%s is there and is no socket: it would be replaced: name a path that is free, such as /run/isthmus/cni.sock", path)
	}
	for _, kind := range []string{"unix", "unixgram"} { // ours are unixpacket: whoever takes these is somebody else
		c, err := net.DialTimeout(kind, path, 100*time.Millisecond)
		if err == nil {
			c.Close()
		}
		if err == nil || errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("%s is the socket of another program: it would be replaced: name a path that is free, such as /run/isthmus/cni.sock", path)
		}
	}
	return nil
}
