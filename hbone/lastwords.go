package hbone

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"
)

// An application may answer and close before it has read all that it was sent (HTTP 413
// is one): its kernel sends RST, and whoever reads at the other end of a TCP connection
// has the answer first, as a reset leaves what has arrived before it to be read. Through
// a tunnel it is the same: a reset comes behind what was said before it.

// lastWordsWithin bounds how long what was said before a reset takes to be passed on.
// What waits longer for credit than stallCheck is given up before: a TCP connection
// loses too what its peer's window had no room for.
const lastWordsWithin = 10 * time.Second

// hearOut is called when a write was told that the connection was reset. True: what
// comes for it is dropped from here on, and credited, until the source has sent what it
// said before, and resets the stream. False if the stream sends nothing more.
func (k *sink) hearOut(err error) bool {
	if !k.tellsAll {
		return false
	}
	k.deaf.Store(true) // before ended is looked at: awaitReset looks the other way round
	st := k.st
	st.s.mu.Lock()
	stopped, ended := st.send.stopped, st.send.ended
	st.s.mu.Unlock()
	switch {
	case stopped:
		return false
	case ended: // the source has nothing more
		st.resetBehind(http2.ErrCodeConnect, err)
		return true
	}
	if k.endedFirstNow() {
		return true // for as long as the source waits for credit
	}
	k.lastTime = time.AfterFunc(lastWordsWithin, func() {
		st.abort(http2.ErrCodeConnect, err)
		hardClose(k.c)
	})
	return true
}

// stopLastTime is called once done is closed.
func (k *sink) stopLastTime() {
	if k.lastTime != nil {
		k.lastTime.Stop()
	}
}

// lastWords reports that the peer has reset the stream, and that what came before is
// still for the sink's connection.
func (k *sink) lastWords() bool {
	if !k.tellsAll {
		return false
	}
	h := &k.st.recv
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lastWordsLocked()
}

// hasLastWords is lastWords for who was told by a write to the stream, which may be
// before the receiving half knows.
func (k *sink) hasLastWords() bool {
	return k.tellsAll && isRemoteReset(k.st.broken()) || k.lastWords()
}

// wasTold reports that err, of a write, is a reset by the other end of the sink's
// connection: what that has said before may still be read.
func (k *sink) wasTold(err error) bool {
	if _, ok := k.c.(*Stream); ok {
		return isRemoteReset(err)
	}
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isRemoteReset(err error) bool {
	var reset *ResetError
	return errors.As(err, &reset) && reset.Remote
}

// lastWordsLocked reports that the peer has reset the half and that it may still be read.
func (h *recvHalf) lastWordsLocked() bool {
	return !h.closed && isRemoteReset(h.err)
}

// outlives reports that cause, for which the relay's context has ended, is how the stream
// itself was reset or lost, by the peer, and that what came before is still for the
// sink's connection. Behind END_STREAM that is all there was to come.
func (k *sink) outlives(cause error) bool {
	if isRemoteReset(cause) && k.lastWords() {
		return true
	}
	st := k.st
	st.s.mu.Lock()
	closed := st.closed // by this end
	st.s.mu.Unlock()
	st.recv.mu.Lock()
	defer st.recv.mu.Unlock()
	return !closed && st.recv.ended && st.recv.broken != nil && errors.Is(cause, st.recv.broken)
}

// cutWith has cut called when base, the context of Serve, ends while the relay goes on
// behind the end of its own context.
func (k *sink) cutWith(base context.Context, cut func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if base != nil && !k.over {
		k.uncut = context.AfterFunc(base, cut)
	}
}

// leave ends cutWith.
func (k *sink) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over = true; k.uncut != nil {
		k.uncut()
	}
}

// stoppedBehindEnd reports that the stream sends nothing any more, for which there is a
// reason of its own, and that what was received is complete: the sink delivers it.
func (st *Stream) stoppedBehindEnd() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.send.stopped && st.endReceived
}

// endSource ends the source of a stream that broke behind its peer's END_STREAM: nobody
// hears it any more. The relay then resets the connection, behind the FIN.
func (k *sink) endSource() {
	if _, ok := k.c.(*Stream); ok {
		hardClose(k.c)
		return
	}
	k.c.SetReadDeadline(time.Unix(1, 0))
}

// awaitDelivery waits, before the sink's connection is reset behind its FIN, until the
// other end's kernel has all that was written and the FIN: a reset throws the rest away.
func (k *sink) awaitDelivery() {
	if k.err != nil || !k.ending.Load() || !k.inline || k.sock.mem != nil {
		return
	}
	k.c.SetWriteDeadline(time.Now().Add(stallTime))
	k.sock.raw.Write(func(fd uintptr) bool {
		state, ok := k.sock.state(fd)
		return !ok || !slices.Contains(unacknowledged, state)
	})
}

// unacknowledged are TCP's states in which a FIN that was sent is not acknowledged, or,
// in the first two, is about to be sent.
var unacknowledged = []uint8{unix.BPF_TCP_ESTABLISHED, unix.BPF_TCP_CLOSE_WAIT, unix.BPF_TCP_FIN_WAIT1, unix.BPF_TCP_CLOSING, unix.BPF_TCP_LAST_ACK}
