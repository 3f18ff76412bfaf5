package hbone

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// awaitReset waits, behind the FIN of the sink's connection, until the sink has
// delivered all, nil, or that connection is reset: nobody else would notice while
// there is nothing to deliver. Only a socket of the kernel and a Stream are looked at.
func (k *sink) awaitReset() error {
	if st, ok := k.c.(*Stream); ok {
		return k.awaitBroken(&st.recv)
	}
	if !k.inline || k.sock.mem != nil {
		<-k.done
		return nil
	}
	k.atFinish(func() { k.c.SetReadDeadline(time.Unix(1, 0)) })
	reset := false
	k.sock.raw.Read(func(fd uintptr) bool {
		// In this order: an orderly end of both directions leads to CLOSE too.
		reset = k.sock.wasReset(fd) && !k.ending.Load()
		return reset || k.ending.Load()
	})
	if !reset {
		<-k.done
		return nil
	}
	return fmt.Errorf("hbone: relay: %v was reset behind its FIN: %w", k.c.RemoteAddr(), syscall.ECONNRESET)
}

// awaitBroken is awaitReset for the receiving half of a stream.
func (k *sink) awaitBroken(h *recvHalf) error {
	over := false // guarded by h.mu
	k.atFinish(func() {
		h.mu.Lock()
		over = true
		h.cond.Broadcast()
		h.mu.Unlock()
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for !over && h.broken == nil {
		h.cond.Wait()
	}
	if over {
		return nil
	}
	return fmt.Errorf("hbone: relay: %v broke behind its end: %w", k.c.RemoteAddr(), h.broken)
}

// atFinish has f called, once, when the sink has finished, at once if it has.
func (k *sink) atFinish(f func()) {
	k.mu.Lock()
	k.onFinish = f
	finished := k.finished
	k.mu.Unlock()
	if finished {
		k.release()
	}
}

// release ends awaitReset.
func (k *sink) release() {
	k.mu.Lock()
	f := k.onFinish
	k.onFinish = nil
	k.mu.Unlock()
	if f != nil {
		f()
	}
}

// wasReset reports whether the socket is in TCP's state CLOSE. It takes no error off it.
func (s socket) wasReset(fd uintptr) bool {
	if s.mem != nil {
		return s.mem.WasReset()
	}
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO)
	return err == nil && info.State == unix.BPF_TCP_CLOSE
}
