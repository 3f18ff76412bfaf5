package hbone

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/net/http2"
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
