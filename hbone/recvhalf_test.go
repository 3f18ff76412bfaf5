package hbone

import (
	"errors"
	"io"
	"testing"
)

// A relay resets its stream; the peer, which does not know yet, leaves in order. The
// stream has failed, and nobody takes it for one that ended.
func TestAHalfThatHasFailedStaysSoWhenItsPeerLeaves(t *testing.T) {
	failed := errors.New("the application has reset its connection")
	for name, inTurn := range map[string]struct {
		do   func(h *recvHalf)
		want error
		left bool
	}{
		"fails, then the peer leaves": {func(h *recvHalf) { h.fail(failed, false); h.leave() }, failed, false},
		"fails, then the peer ends":   {func(h *recvHalf) { h.fail(failed, false); h.end() }, failed, false},
		"the peer leaves, then fails": {func(h *recvHalf) { h.leave(); h.fail(failed, true) }, io.EOF, true},
	} {
		t.Run(name, func(t *testing.T) {
			var st Stream
			st.recv.init(new(path), 1<<16, 1<<16, nil)
			inTurn.do(&st.recv)
			if err := st.recv.wait(1); err != inTurn.want {
				t.Errorf("readers get %v, want %v", err, inTurn.want)
			}
			if _, left := st.recv.state(); left != inTurn.left {
				t.Errorf("the peer has left: %v, want %v", left, inTurn.left)
			}
			check(t, st.checkReceiving())
		})
	}
}
