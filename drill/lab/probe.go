package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// probe looks at an address from outside of the mesh, as the injector's own
// eyes: refused, hangs, silent, closes or answers.
func (n *network) probe(ctx context.Context, addr netip.AddrPort, wait time.Duration) string {
	c, err := n.dial(ctx, time.Now().Add(wait), addr)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case err != nil && timedOut(err):
		return "hangs"
	case err != nil:
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait))
	fmt.Fprintf(c, "hello probe\n")
	if _, err := c.Read(make([]byte, 1)); timedOut(err) {
		return "silent"
	} else if err != nil {
		return "closes"
	}
	return "answers"
}
