package hbone

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// awaitReset waits, behind the FIN of the sink's connection, until the sink has
// delivered all, nil, or that connection is reset: nobody else would notice while
// there is nothing to deliver. Only a socket of the kernel and a Stream are looked at.
func (k *sink) awaitReset() error {
	if k.deaf.Load() {
		return fmt.Errorf("hbone: relay: %v was reset: %w", k.c.RemoteAddr(), syscall.ECONNRESET)
	}
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
		reset = k.wasReset(fd)
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

// wasReset reports whether the sink's connection was reset, as long as it has got no
// FIN from here: behind one, an orderly end of both directions leads to CLOSE too, with
// bytes that nobody has read yet. A reset behind our FIN is told by a read, after them.
// (POLLERR says no more: a reset behind the application's FIN sets it too, and what came
// before that FIN is complete.)
func (k *sink) wasReset(fd uintptr) bool {
	return !k.ending.Load() && k.sock.closed(fd) && !k.ending.Load() // again: the FIN may go out meanwhile
}

// wasResetNow is wasReset for who is not in a callback of the socket.
func (k *sink) wasResetNow() (reset bool) {
	switch {
	case k.sock.mem != nil:
		return k.wasReset(0)
	case k.inline:
		k.sock.raw.Control(func(fd uintptr) { reset = k.wasReset(fd) })
	}
	return reset
}

// endedFirst reports whether the sink's connection, of which wasReset is true, had sent its
// FIN before it was reset: all that it has sent is there, and the FIN behind it. Of that
// the kernel tells EPIPE, and of a reset without a FIN ECONNRESET, both once: to a write, to
// a read (not behind a FIN), or to who asks for the socket's pending error. Each write after
// that has EPIPE, whatever it was. telling is held for as long as a write may have been
// told and has not said so.
func (k *sink) endedFirst(fd uintptr) bool {
	if k.sock.mem != nil {
		return k.sock.mem.EndedFirst()
	}
	k.telling.Lock()
	defer k.telling.Unlock()
	if k.told == nil {
		k.told = pendingError(fd)
	}
	return k.told == syscall.EPIPE
}

// endedFirstNow is endedFirst for who is not in a callback of the socket. The connection
// may be a Stream.
func (k *sink) endedFirstNow() (first bool) {
	switch st, ok := k.c.(*Stream); {
	case ok:
		return st.recv.hasEnded()
	case k.sock.mem != nil:
		return k.endedFirst(0)
	case k.inline:
		k.sock.raw.Control(func(fd uintptr) { first = k.endedFirst(fd) })
	}
	return first
}

// wasToldBefore asks, before the relay begins, whether a reset was told to others: that
// may have been any, and counts as one without a FIN.
func (k *sink) wasToldBefore(fd uintptr) {
	if !k.sock.closed(fd) {
		return
	}
	if k.told = pendingError(fd); k.told == nil {
		k.told = syscall.ECONNRESET
	}
}

// pendingError takes the error off a socket that it would tell next.
func pendingError(fd uintptr) error {
	if code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
		return syscall.Errno(code)
	}
	return nil
}

// closed reports whether the socket is in TCP's state CLOSE. It takes no error off it.
func (s socket) closed(fd uintptr) bool {
	if s.mem != nil {
		return s.mem.StateClose()
	}
	state, ok := s.state(fd)
	return ok && state == unix.BPF_TCP_CLOSE
}

// state is TCP's state of a socket of the kernel; ok is false if it has none.
func (s socket) state(fd uintptr) (state uint8, ok bool) {
	// The kernel fills as much of a TCPInfo as there is room for: all of it would be
	// an allocation, several times for each connection. The state is its first byte.
	head, err := unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_INFO)
	var info [4]byte
	binary.NativeEndian.PutUint32(info[:], uint32(head))
	return info[0], err == nil
}
