//go:build linux

package cnisocket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Ask says r to the node proxy behind the socket, with the network namespace if that is not nil, and returns its reply. It ends with
// ctx, which is to have a deadline.
func Ask(ctx context.Context, socket string, r Request, namespace *os.File) (Reply, error) {
	b, err := r.encode()
	if err != nil {
		return Reply{}, err
	}
	var d net.Dialer
	dialed, err := d.DialContext(ctx, "unixpacket", socket)
	if err != nil {
		return Reply{}, err
	}
	defer dialed.Close()
	c := dialed.(*net.UnixConn)
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
	var with []byte
	if namespace != nil {
		with = unix.UnixRights(int(namespace.Fd()))
	}
	if _, _, err := c.WriteMsgUnix(b, with, nil); err != nil {
		return Reply{}, ended(ctx, err)
	}
	answer := make([]byte, maxMessage)
	n, err := c.Read(answer)
	if errors.Is(err, io.EOF) {
		err = errors.New("the node proxy has closed the connection without a reply")
	}
	if err != nil {
		return Reply{}, ended(ctx, err)
	}
	return decodeReply(answer[:n])
}

// ended returns why ctx has ended, if it has: what was interrupted says no more.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("the node proxy has not answered: %w", context.Cause(ctx))
	}
	return err
}
