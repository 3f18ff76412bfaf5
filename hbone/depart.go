package hbone

import (
	"errors"
	"io"
)

// EndAtEOF makes the end of the transport, between two frames, an end of the stream
// like END_STREAM, provided that our own half has ended before: what was received is
// delivered, io.EOF follows. It is for a server's streams of stock clients that come
// through a gateway (x-forwarded-network without isthmus-ends). A stock client whose
// server finished first drops the inner connection, and now and then its last
// END_STREAM with it, and TLS's closing alert too (13 of 39 with ztunnel 62d82653,
// all bytes before it delivered); a client or a gateway that died is told by a reset
// (see RelayWith). Bytes that the client itself dropped are not missed: it may lose
// what its application says together with its FIN, to stock servers too. Without a
// gateway in between nothing tells the two apart, and a stream that was cut short
// would look complete.
func (st *Stream) EndAtEOF() {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	st.eofEnds = true
}

// onTransportEOF deals with those streams when the transport has ended with err.
func (s *Session) onTransportEOF(err error) {
	if !errors.Is(err, io.EOF) && err != errCut || !s.recv.frames.between() {
		return
	}
	var ended []*Stream
	s.mu.Lock()
	for _, st := range s.streams {
		if st.eofEnds && st.send.endSent && !st.endReceived {
			st.endReceived = true
			ended = append(ended, st)
			s.removeIfEndedLocked(st)
		}
	}
	s.mu.Unlock()
	for _, st := range ended {
		st.resetByPeer(nil, true)
	}
}

// between reports that no frame and no header block is unfinished.
func (r *frameReader) between() bool { return r.have == 0 && r.block == 0 && len(r.preface) == 0 }
