package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
)

// patience is how long the injector waits for what it wants to see: that nothing comes is
// believed after a look, but what is to come may be late on a busy machine, and has as
// long as an order to be obeyed.
func patience(want string) (connect, answer time.Duration) {
	switch want {
	case "hangs":
		return look, look
	case "silent":
		return orderTimeout, look
	}
	return orderTimeout, orderTimeout
}

// probeFor looks whether an address does what is wanted of it.
func (n *network) probeFor(ctx context.Context, addr netip.AddrPort, want string) string {
	connect, answer := patience(want)
	return n.probe(ctx, addr, connect, answer)
}

// probe looks at an address from outside of the mesh, as the injector's own
// eyes: refused, hangs, silent, closes or answers.
func (n *network) probe(ctx context.Context, addr netip.AddrPort, connect, answer time.Duration) string {
	c, err := n.dial(ctx, time.Now().Add(connect), addr)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case err != nil && timedOut(err):
		return "hangs"
	case err != nil:
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(answer))
	fmt.Fprintf(c, "hello probe\n")
	if _, err := c.Read(make([]byte, 1)); timedOut(err) {
		return "silent"
	} else if err != nil {
		return "closes"
	}
	return "answers"
}
