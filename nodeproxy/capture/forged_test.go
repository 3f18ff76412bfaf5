//go:build linux

package capture

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// forge has a process of the pod send what is no answer to the socket c of a node proxy until that takes no more, as
// whoever has CAP_NET_ADMIN there may: of many parts, the last of which never comes. It reports whether any was taken.
func (p *pod) forge(t *testing.T, c *netlink.Conn) (taken bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, err)
	var at unix.Sockaddr
	must(t, raw.Control(func(fd uintptr) { at, err = unix.Getsockname(int(fd)) }))
	must(t, err)
	sender := -1
	must(t, p.ns.Do(func() (err error) {
		sender, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		return err
	}))
	defer unix.Close(sender)
	for _, size := range []int{1024, 16} { // until not even an answer has room
		message := make([]byte, size)
		binary.NativeEndian.PutUint32(message, uint32(size))
		binary.NativeEndian.PutUint16(message[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
		binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_MULTI)
		for {
			if err = unix.Sendto(sender, message, unix.MSG_DONTWAIT, at); err != nil {
				break
			}
			taken = true
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	return taken
}

// What a process of a pod sends to the watch of its rules is no answer, and holds up nobody: all pods of a node are asked by
// one goroutine.
func TestNobodyButTheKernelAnswersAWatch(t *testing.T) {
	p := newPod(t)
	w, err := NewWatch(p.ns)
	must(t, err)
	_, err = w.Changed()
	must(t, err)
	if p.forge(t, w.socket) {
		t.Error("a process of the pod has sent something to the node proxy")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			if changed, err := w.Changed(); err != nil || changed {
				t.Errorf("nothing has changed, and it says %t, %v", changed, err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the watch waits for somebody who is not the kernel")
	}
	w.Close()
	<-done
}
