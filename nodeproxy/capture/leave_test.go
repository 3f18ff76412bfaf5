//go:build linux

package capture

import (
	"context"
	"net"
	"syscall"
	"testing"
	"time"
)

// Of two processes that share a port, the one that leaves answers what it was asked before, and the other
// is asked everything after that.
func TestASocketThatLeavesAnswersWhatItWasAsked(t *testing.T) {
	p := newPod(t)
	for _, at := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		lc := net.ListenConfig{Control: func(n, a string, c syscall.RawConn) error {
			if err := p.ns.Control(n, a, c); err != nil {
				return err
			}
			return Share(n, a, c)
		}}
		open := func() *net.UDPConn {
			c, err := lc.ListenPacket(context.Background(), "udp", at)
			must(t, err)
			t.Cleanup(func() { c.Close() })
			return c.(*net.UDPConn)
		}
		old := open()
		early, err := p.dial("udp", at, nil)
		must(t, err)
		defer early.Close()
		_, err = early.Write([]byte("early"))
		must(t, err)
		next := open()
		must(t, Leave(old))
		for range 50 {
			c, err := p.dial("udp", at, nil)
			must(t, err)
			_, err = c.Write([]byte("late"))
			must(t, err)
			c.Close()
		}
		b := make([]byte, 10)
		for i := range 50 {
			next.SetReadDeadline(time.Now().Add(time.Second))
			if n, _, err := next.ReadFrom(b); err != nil || string(b[:n]) != "late" {
				t.Fatalf("at %s the next process has received %d of 50, then %q, %v", at, i, b[:n], err)
			}
		}
		old.SetReadDeadline(time.Now().Add(time.Second))
		n, from, err := old.ReadFrom(b)
		if err != nil || string(b[:n]) != "early" {
			t.Fatalf("at %s the process that leaves reads %q, %v", at, b[:n], err)
		}
		_, err = old.WriteTo([]byte("answer"), from)
		must(t, err)
		early.SetReadDeadline(time.Now().Add(time.Second))
		if n, err := early.Read(b); err != nil || string(b[:n]) != "answer" {
			t.Errorf("at %s the answer is %q, %v", at, b[:n], err)
		}
	}
}
